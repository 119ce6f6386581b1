"""Modules of onnxruntime.transformers that programs need to run models; those that rewrite are left out."""
