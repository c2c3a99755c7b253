"""The parts of ``benchmarks/run.py``, which says what they do together.

cases.py     the named shapes             check.py    right results first
problem.py   their arrays                 timing.py   all calls in turn
masks.py     who attends to whom          limits.py   what the machine could do
peer_*.py    who computes it              worker.py   one process for each number of threads
narrower.py  attnext, narrower vectors    record.py   a run as a file
peers.py     the list of them             report.py   the tables
before.py    attnext of another commit    picture.py  the picture; shown.py, what it shows
compare.py   two records side by side     paste.py    tables and pictures into the documents
"""
