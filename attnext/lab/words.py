"""Every word that a check says, but those of the misconceptions, in both languages.

What stands in braces is filled in.
"""

from __future__ import annotations

# What a case is called, by its key: it follows "case 3 of 13, ".
CASES = {
    "one-row": ("one row", "一行"),
    "one-row-with-a-length": ("one row and its length", "一行，带有效长度"),
    "batch": ("a batch", "一个批量"),
    "length-of-each-entry": ("a length for each entry", "每个样本一个有效长度"),
    "length-of-each-query": ("a length for each query", "每个查询一个有效长度"),
    "sizes-differ": ("no two sizes alike", "各个大小都不相同"),
    "empty-row": ("a row of length 0", "有效长度为0的行"),
    "huge-scores": ("huge scores", "极大的评分"),
    "very-negative-scores": ("very negative scores, and padding", "非常小的负评分，带填充"),
    "padding-huge": ("huge numbers in the padding", "填充处是极大的数"),
    "padding-nan": ("NaN in the padding", "填充处是NaN"),
    "padding-of-attention": (
        "NaN in padded keys, huge numbers in padded values",
        "填充的键是NaN，填充的值是极大的数",
    ),
    "integers": ("integers", "整数"),
    "strided": ("arrays that are not contiguous", "内存不连续的数组"),
    "another-value": ("another value than 0", "value不是0"),
    "nothing-and-all": ("nothing and everything left over", "全部填充，以及没有填充"),
    "features": ("places that have features", "每个位置有多个特征"),
    "one-query": ("one query", "一个查询"),
    "another-sigma": ("sigma is 0.5", "sigma为0.5"),
    "two-features": ("two features", "两个特征"),
    "three-examples": ("three examples", "三个样例"),
    "more-examples": ("five examples", "五个样例"),
    "two-examples": ("two examples", "两个样例"),
    "one-entry": ("a batch of one", "批量大小为1"),
    "square": ("all sizes alike", "各个大小都相同"),
    "more-heads": ("five heads", "五个头"),
    "one-head": ("a single head", "只有一个头"),
    "few-positions": ("few positions", "几个位置"),
    "square-positions": ("as many positions as features", "位置与特征一样多"),
    "one-wave": ("two features", "两个特征"),
    "many-features": ("many features", "许多特征"),
    "many-positions": ("many positions", "许多位置"),
}

# What is wrong before any number is looked at.
FAULTS = {
    "raised": (
        "It raised {kind}: {text}",
        "它抛出了{kind}：{text}",
    ),
    "at": ("in the line: {line}", "出错的一行：{line}"),
    "none": ("It returned None: is a return missing?", "它返回了None：是不是漏了return？"),
    "none-among-them": ("{name} is None.", "{name}是None。"),
    "count": (
        "It returned {count} arrays, expected: {wanted}.",
        "它返回了{count}个数组，应返回：{wanted}。",
    ),
    "return-type": (
        "{name} is of type {type}, expected an array.",
        "{name}的类型是{type}，应为数组。",
    ),
    "integers": (
        "{name} holds integers ({dtype}), which cut off what comes after the point. An array made "
        "by zeros_like or empty_like of integers does so; so does astype(int).",
        "{name}是整数（{dtype}），小数部分被截掉了。由整数数组经zeros_like或empty_like得到的数组"
        "就是这样，astype(int)也是。",
    ),
    "dtype": (
        "{name} has dtype {dtype}, expected floats.",
        "{name}的dtype是{dtype}，应为浮点数。",
    ),
    "changed": (
        "The numbers are right, but the input {name} was changed. Work on a copy: whoever called "
        "still needs it. (The book's own sequence_mask writes into X; there nobody misses it.)",
        "数值是对的，但输入{name}被改动了。应在副本上计算：调用者还要用它。（书中的sequence_mask"
        "也会写入X，只是那里之后不再用到它。）",
    ),
    "signature": (
        "It is called with ({parameters}), and takes {signature}.",
        "调用时的参数是({parameters})，而它接受的是{signature}。",
    ),
    "shape": (
        "{name} has shape {got}, expected {wanted}.",
        "{name}的形状是{got}，应为{wanted}。",
    ),
    "values": (
        "{name} is wrong in {count} of {size} numbers, by {off:.3g} at most.",
        "{name}中有{count}个数不对（共{size}个），最多相差{off:.3g}。",
    ),
    "nan": (
        "{name} is wrong in {count} of {size} numbers: NaN or infinite where it should not be, or "
        "the other way round.",
        "{name}中有{count}个数不对（共{size}个）：该是有限数的地方出现了NaN或无穷，或者相反。",
    ),
}

PHRASES = {
    "wrong": (
        "{name}: wrong in case {number} of {count}, {case}",
        "{name}：第{number}个用例（共{count}个）不对：{case}",
    ),
    "right": (
        "{name}: right, in all {count} cases",
        "{name}：正确，{count}个用例全部通过",
    ),
    "tried": ("Tried: {cases}.", "用例：{cases}。"),
    "left-out": ("Left out for tensors: {cases}.", "对张量不适用：{cases}。"),
    "unrecognised": (
        "Not recognised as one of the {count} misconceptions known here: what is wrong is "
        "something else. Compare the numbers.",
        "不属于这里已知的{count}种误解：错在别处。请对照数值查找。",
    ),
    "input": ("input", "输入"),
    "expected": ("expected", "应为"),
    "got": ("got", "得到"),
    "difference": ("difference", "差"),
    "tolerance": (
        "Allowed: {tolerance:.1g}, 64 times what one float32 rounding of the input moves.",
        "允许相差{tolerance:.1g}，即输入在float32下舍入一次所引起变化的64倍。",
    ),
    "tolerances": (
        "Allowed: {least:.1g} to {most:.1g} by case, 64 times what one float32 rounding of the "
        "input moves.",
        "允许相差{least:.1g}到{most:.1g}（因用例而异），即输入在float32下舍入一次所引起变化"
        "的64倍。",
    ),
    "timing": (
        "{shape}: yours {yours} ms, attnext {ours} ms, on one thread: x{ratio}",
        "{shape}：单线程下，你的函数{yours}毫秒，attnext {ours}毫秒，x{ratio}",
    ),
}

# What stands in an assignment, and around it.
HANDOUT = {
    "head": (
        "# Exercises: {title}\n\nTo the notebook of that name. Fill in the cells below the tasks, "
        "and "
        "run the checks beneath them: a check that says nothing is passed. Names that a check "
        "reads "
        "stand in the first line of the cell above it.",
        "# 练习：{title}\n\n对应同名的笔记本。请填写各题下方的单元格，再运行其后的检查：什么也不显"
        "示就是"
        "通过了。检查要用到的名称写在上面单元格的第一行。",
    ),
    "exercise": ("Exercise {number}", "练习 {number}"),
    "leaves": ("# leaves behind: {names}", "# 需要得到：{names}"),
    "code": ("# YOUR CODE HERE", "# 在此编写代码"),
    "words": ("*Your answer here.*", "*在此作答。*"),
    "missing": (
        "exercise {number}: {{name}} is not there yet",
        "练习{number}：还没有{{name}}",
    ),
    "written": ("{count} files are in {folder}", "{count}个文件，保存在 {folder}"),
    "readme": (
        "# Attention, in notebooks and assignments\n\n"
        "From attnext {version}. `notebooks/` has the notebooks, in the order in which they are "
        "to be "
        "read; `assignments/` has the exercises of each, with cells to fill in and a check "
        "beneath; "
        "`data/` has the measurements of notebook 02, which the package has as well.\n\n"
        '    pip install "attnext[lab]"\n    jupyter notebook\n\n'
        "The assignments 01 to 04 and 08 need no PyTorch. While you write a function of "
        "the "
        "chapter, ask what is wrong with it:\n\n"
        "    from attnext import lab\n    lab.check(masked_softmax)\n",
        "# 注意力：笔记本与作业\n\n"
        "来自 attnext {version}。`notebooks/` 里是各篇笔记本，按阅读顺序编号；`assignments/` 里是"
        "各篇的"
        "练习，有待填写的单元格，每题之后有检查；`data/` 里是第 02 篇所用的测量数据，软件包中也有"
        "一份。"
        "\n\n"
        '    pip install "attnext[lab]"\n    jupyter notebook\n\n'
        "作业 01 至 04 和 08 不需要 PyTorch。自己编写这一章的函数时，可以问问哪里不对：\n\n"
        '    from attnext import lab\n    lab.check(masked_softmax, lang="zh")\n',
    ),
}


def said(table: dict[str, tuple[str, str]], key: str, lang: str, **numbers: object) -> str:
    """A sentence of a table, with its numbers filled in."""
    return table[key][lang == "zh"].format(**numbers)
