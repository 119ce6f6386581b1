"""Resize in written .onnx files computes the same in stock onnxruntime."""

import pytest
import torch
import torch.nn.functional as F

from tests.onnx.test_onnx_file import close, run

RESIZES = [
    ("nearest2d", {"mode": "nearest"}),
    ("nearest_exact2d", {"mode": "nearest-exact"}),
    ("bilinear2d", {"mode": "bilinear"}),
    ("bilinear2d", {"mode": "bilinear", "align_corners": True}),
    ("bicubic2d", {"mode": "bicubic"}),
    ("bicubic2d", {"mode": "bicubic", "align_corners": True}),
    ("bilinear2d_aa", {"mode": "bilinear", "antialias": True}),
    ("bicubic2d_aa", {"mode": "bicubic", "antialias": True}),
]


@pytest.mark.parametrize(("mode", "options"), RESIZES)
@pytest.mark.parametrize("scaled", [False, True])
def test_interpolation(path, mode, options, scaled):
    corners = int(options.get("align_corners", False))
    sizes, scales = ("13,18", "1.5,2.0") if scaled else ("5,12", "0.0,0.0")
    text = f"""resize (x: f32[b,3,9,9]) => (y) {{
        y: f32[b,3,{sizes}] = Resize<mode="{mode}", sizes=[{sizes}], scales=[{scales}],
            align_corners={corners}> (x)
    }}"""
    x = torch.randn(2, 3, 9, 9)
    where = {"scale_factor": (1.5, 2.0)} if scaled else {"size": (5, 12)}
    close(run(text, {"x": x}, path), F.interpolate(x, **where, **options))


ONNX_RESIZES = [
    ("linear", 'coordinate_transformation_mode="align_corners"', "bilinear", True),
    ("cubic", "cubic_coeff_a=-0.75", "bicubic", False),
    (
        "nearest",
        'coordinate_transformation_mode="asymmetric", nearest_mode="floor"',
        "nearest",
        None,
    ),
    (
        "linear",
        'coordinate_transformation_mode="tf_crop_and_resize", roi=[0.25,0.0,0.75,1.0]',
        "bilinear",
        True,
    ),
]


@pytest.mark.parametrize(("mode", "more", "torch_mode", "corners"), ONNX_RESIZES)
def test_interpolation_in_onnx_terms(path, mode, more, torch_mode, corners):
    text = f"""resize (x: f32[b,3,9,9]) => (y) {{
        y: f32[b,3,5,12] = Resize<mode="{mode}", sizes=[5,12], scales=[0.0,0.0], {more}> (x)
    }}"""
    x = torch.randn(2, 3, 9, 9)
    part = x[:, :, 2:7] if "roi" in more else x
    want = F.interpolate(part, (5, 12), mode=torch_mode, align_corners=corners)
    close(run(text, {"x": x}, path), want)
