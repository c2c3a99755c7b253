"""What a release consists of: python -P .ci/packages.py COMMAND and files.

same ONE OTHER          two wheels, or sdists, of the same source are the same bytes
whole SDIST WHEEL       both hold what the clone has, and what is made of it, nothing else
wheels FOLDER           runs cibuildwheel, with the date of the commit for what is in them
sdist FOLDER            builds the sdist, with the same date
bill FOLDER             beside each wheel WHEEL.cdx.json, its bill of materials (CycloneDX 1.6)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import uuid
import zipfile
from email.parser import Parser
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parent.parent
MADE_SDIST = re.compile(r"PKG-INFO|setup\.cfg|attnext\.egg-info/.*")
MADE_WHEEL = re.compile(r"attnext/(_core\.[\w-]+\.(so|pyd)|_docs/joined|data/notebooks/.*\.ipynb)")


def fail(message: str) -> None:
    sys.exit(f"packages.py: {message}")


def contents(package: Path) -> dict[str, bytes]:
    """The files in a wheel, or in an sdist."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(package) as tar:
        files = [(member, tar.extractfile(member)) for member in tar if member.isfile()]
        return {member.name.partition("/")[2]: file.read() for member, file in files if file}


def same(one: Path, other: Path) -> None:
    """Where two of them differ, if they do."""
    if one.read_bytes() != other.read_bytes():
        names = {name for name, _ in contents(one).items() ^ contents(other).items()}
        fail(f"two builds of one source differ in {sorted(names) or 'their dates'}")
    print(f"built twice in two places, the same bytes: {one.name}, sha256 {digest(one)}")


def clone() -> dict[str, bytes]:
    """What git has, but for what is for those alone who have the clone."""
    listed = subprocess.check_output(["git", "-C", ROOT, "ls-files", "-z"], text=True)
    names = [name for name in listed.split("\0") if name and not name.startswith(".")]
    return {name: (ROOT / name).read_bytes() for name in names}


def compare(what: str, found: dict[str, bytes], known: dict[str, bytes], made: str) -> None:
    rest = {name: content for name, content in found.items() if not re.fullmatch(made, name)}
    if rest != known:
        lacking, unknown = known.keys() - rest.keys(), rest.keys() - known.keys()
        other = {name for name in known.keys() & rest.keys() if known[name] != rest[name]}
        for word, names in ("lacks", lacking), ("has besides", unknown), ("has otherwise", other):
            if names:
                print(f"the {what} {word}: {', '.join(sorted(names))}")
        fail(f"the {what} is not the clone")
    print(f"the {what} has the {len(known)} files of the clone, and {len(found) - len(rest)} made")


def whole(source: Path, wheel: Path) -> None:
    """Files of the clone that are missing in either, or that the clone does not have."""
    known = clone()
    compare("sdist", contents(source), known, MADE_SDIST.pattern)
    package = {name: content for name, content in known.items() if name.startswith("attnext/")}
    compare("wheel", contents(wheel), package, MADE_WHEEL.pattern + r"|attnext-[^/]*\.dist-info/.*")


def run_dated(*command: str) -> None:
    """With the date of the commit for all that is packed, as .ci/run wheel builds it twice."""
    date = subprocess.check_output(["git", "-C", ROOT, "log", "-1", "--format=%ct"], text=True)
    epoch = {"SOURCE_DATE_EPOCH": date.strip(), "CIBW_ENVIRONMENT_PASS_LINUX": "SOURCE_DATE_EPOCH"}
    sys.exit(subprocess.run([sys.executable, "-m", *command], env=os.environ | epoch).returncode)


def wheels(folder: Path) -> None:
    run_dated("cibuildwheel", "--output-dir", str(folder))


def sdist(folder: Path) -> None:
    run_dated("build", "--sdist", "--outdir", str(folder))


def digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def bill(folder: Path) -> None:
    """The bills of all wheels there."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        fail(f"there is no wheel in {folder}")
    for wheel in wheels:
        write_bill(wheel)


def write_bill(wheel: Path) -> None:
    """What is in the wheel, and what it asks for: no code of others is compiled in."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(path).decode("utf-8"))
        foreign = sorted(name for name in archive.namelist() if name.startswith("attnext.libs/"))
    if foreign:
        fail(f"libraries of others are in the wheel, for the bill to name: {foreign}")
    name, version = metadata["Name"], metadata["Version"]
    itself = f"pkg:pypi/{name}@{version}"
    required = [x for x in metadata.get_all("Requires-Dist", []) if "extra ==" not in x]
    needed = {f"pkg:pypi/{re.split('[^A-Za-z0-9-]', x)[0].lower()}": x for x in required}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, itself + digest(wheel))}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": itself,
                "name": name,
                "version": version,
                "purl": itself,
                "licenses": [{"license": {"id": metadata["License-Expression"]}}],
                "hashes": [{"alg": "SHA-256", "content": digest(wheel)}],
                "description": wheel.name,
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": purl,
                "name": purl.rpartition("/")[2],
                "purl": purl,
                "description": f"at run time: {requirement}",
            }
            for purl, requirement in needed.items()
        ],
        "dependencies": [{"ref": itself, "dependsOn": sorted(needed)}],
    }
    target = wheel.with_name(f"{wheel.name}.cdx.json")
    target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{target.name}: {name} {version} and {', '.join(needed.values())}")


if __name__ == "__main__":
    commands = {f.__name__: f for f in (same, whole, wheels, sdist, bill)}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*map(Path, sys.argv[2:]))
