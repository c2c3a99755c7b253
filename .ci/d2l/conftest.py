"""d2l.torch imports torchvision, whose only build for this torch needs CUDA for its operators.

What d2l uses of it, data sets and transforms, is Python. Two operators that torchvision describes
while it is imported are declared here, so that it can be imported without them.
"""

import torch

for name in ("nms", "qnms"):
    arguments = "Tensor boxes, Tensor scores, float iou_threshold"
    torch.library.define(f"torchvision::{name}", f"({arguments}) -> Tensor")
