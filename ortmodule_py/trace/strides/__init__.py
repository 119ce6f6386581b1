"""The strides that eager PyTorch gives, where fake tensors have others."""
