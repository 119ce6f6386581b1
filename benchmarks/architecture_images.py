"""Image, generative and implicit models as people write them by hand: each returns its own loss first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

Result = tuple[Tensor, ...]
Batch = dict[str, Tensor]


# ---- segmentation and diffusion ------------------------------------------------------------------


def _double(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class Unet(nn.Module):
    """Down by max pooling, up by transposed convolutions, joined at every size."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = _double(3, width), _double(width, 2 * width)
        self.middle = _double(2 * width, 4 * width)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.third, self.fourth = _double(4 * width, 2 * width), _double(2 * width, width)
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, images: Tensor, classes: Tensor) -> Result:
        """Cross entropy per pixel, and the scores."""
        large = self.first(images)
        small = self.second(F.max_pool2d(large, 2))
        x = self.middle(F.max_pool2d(small, 2))
        x = self.third(torch.cat([small, self.up1(x)], dim=1))
        x = self.fourth(torch.cat([large, self.up2(x)], dim=1))
        logits = self.head(x)
        return F.cross_entropy(logits, classes), logits


class TimedBlock(nn.Module):
    """A residual block with group norm, to which the embedded time is added."""

    def __init__(self, inside: int, outside: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inside), nn.GroupNorm(4, outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(time_width, 2 * outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Scale and shift by time between the convolutions."""
        y = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, dim=1)
        y = self.conv2(F.silu(self.norm2(y) * (1 + scale) + shift))
        return y + self.skip(x)


class PixelAttention(nn.Module):
    """Attention over all pixels by one fused operator."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Add what all pixels say."""
        shape = x.shape
        qkv = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).mT
        y = F.scaled_dot_product_attention(*qkv.unbind(1))
        return x + self.out(y.mT.reshape(shape))


class DiffusionUnet(nn.Module):
    """Predicts the noise that was mixed into an image at a time step."""

    cumulated: Tensor

    def __init__(self, width: int = 8, steps: int = 50) -> None:
        super().__init__()
        betas = torch.linspace(1e-4, 0.02, steps)
        self.register_buffer("cumulated", (1 - betas).cumprod(0))
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = TimedBlock(width, width, 32)
        self.down2 = TimedBlock(width, 2 * width, 32)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle = PixelAttention(2 * width)
        self.grow = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = TimedBlock(2 * width, width, 32)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def _embedded(self, steps: Tensor, x: Tensor) -> Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = steps[:, None].to(x.dtype) * rates[None].to(x.dtype)
        return self.time(torch.cat([angles.sin(), angles.cos()], dim=1))

    def forward(self, images: Tensor, noise: Tensor, steps: Tensor) -> Result:
        """Mean squared error of the predicted noise, and the prediction."""
        kept = self.cumulated[steps][:, None, None, None]
        time = self._embedded(steps, images)
        large = self.down1(self.first(kept.sqrt() * images + (1 - kept).sqrt() * noise), time)
        x = self.middle(self.down2(self.shrink(large), time))
        x = self.grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        predicted = self.head(self.up(torch.cat([x, large], dim=1), time))
        return F.mse_loss(predicted, noise), predicted


class FeaturePyramid(nn.Module):
    """Two sizes joined by bilinear resizing, a focal loss and a box loss."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.lateral = nn.Conv2d(width, width, 1)
        self.classes = nn.Conv2d(width, 2, 3, padding=1)
        self.boxes = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, images: Tensor, hits: Tensor, boxes: Tensor) -> Result:
        """The sum of both losses, and the scores."""
        fine = F.leaky_relu(self.stem(images), 0.1)
        coarse = F.leaky_relu(self.deep(fine), 0.1)
        resized = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        x = self.lateral(fine) + resized
        logits = self.classes(x)
        found = F.binary_cross_entropy_with_logits(logits, hits, reduction="none")
        focal = ((1 - torch.exp(-found)) ** 2 * found).mean()
        box = F.smooth_l1_loss(self.boxes(x).sigmoid() * 4, boxes, reduction="none")
        positive = hits.amax(1, keepdim=True)
        return focal + (box * positive).sum() / positive.sum().clamp(min=1), logits


# ---- classifiers ---------------------------------------------------------------------------------


class DenseNet(nn.Module):
    """Every layer sees the features of all earlier ones."""

    def __init__(self, growth: int = 6, layers: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        widths = [12 + growth * i for i in range(layers)]
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, padding=1, bias=False)
            )
            for width in widths
        )
        total = 12 + growth * layers
        self.transition = nn.Sequential(
            nn.BatchNorm2d(total), nn.ReLU(), nn.Conv2d(total, 16, 1), nn.AvgPool2d(2)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor, labels: Tensor) -> Result:
        """Cross entropy and scores."""
        features = [self.stem(images)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, dim=1)))
        logits = self.head(self.transition(torch.cat(features, dim=1)).mean((2, 3)))
        return F.cross_entropy(logits, labels, label_smoothing=0.1), logits


class InvertedResidual(nn.Module):
    """Expand, filter each channel, squeeze and excite, project."""

    def __init__(self, width: int, expanded: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(width, expanded, 1, bias=False)
        self.filter = nn.Conv2d(expanded, expanded, 3, padding=1, groups=expanded, bias=False)
        self.project = nn.Conv2d(expanded, width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (expanded, expanded, width))
        self.squeeze = nn.Conv2d(expanded, 4, 1)
        self.excite = nn.Conv2d(4, expanded, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Add the filtered features."""
        y = F.hardswish(self.norms[0](self.expand(x)))
        y = F.hardswish(self.norms[1](self.filter(y)))
        gate = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        return x + self.norms[2](self.project(y * F.hardsigmoid(gate)))


class MobileNet(nn.Module):
    """Depthwise convolutions with squeeze and excitation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(InvertedResidual(width, 4 * width) for _ in range(2)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    def forward(self, images: Tensor, labels: Tensor) -> Result:
        """Cross entropy and scores."""
        logits = self.head(self.blocks(F.relu6(self.stem(images))))
        return F.cross_entropy(logits, labels), logits


class MlpMixer(nn.Module):
    """MLPs over the patches and over the channels in turn."""

    def __init__(self, patches: int = 16, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.tokens = nn.ModuleList(
            nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
            for _ in range(2)
        )
        self.channels = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor, labels: Tensor) -> Result:
        """Cross entropy and scores."""
        x = self.stem(images).flatten(2).mT
        for i in range(2):
            x = x + self.tokens[i](self.norms[2 * i](x).mT).mT
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        logits = self.head(self.norms[4](x).mean(1))
        return F.cross_entropy(logits, labels), logits


class CapsuleNet(nn.Module):
    """Capsules with three rounds of routing by agreement, and a margin loss."""

    def __init__(self, capsules: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, stride=4)
        self.weights = nn.Parameter(torch.randn(capsules, classes, 8, 6) * 0.2)

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        """Short vectors to almost zero, long ones to almost one."""
        square = (x * x).sum(-1, keepdim=True)
        return square / (1 + square) * x * torch.rsqrt(square + 1e-8)

    def forward(self, images: Tensor, labels: Tensor) -> Result:
        """Margin loss, and the length of each class's capsule."""
        inside = self.squash(self.stem(images).flatten(2).mT.reshape(len(images), -1, 8))
        votes = torch.einsum("bci,ckij->bckj", inside, self.weights)
        logits, fixed = torch.zeros_like(votes[..., 0]), votes.detach()
        for _ in range(2):
            agreed = self.squash((logits.softmax(2).unsqueeze(-1) * fixed).sum(1))
            logits = logits + (fixed * agreed.unsqueeze(1)).sum(-1)
        out = self.squash((logits.softmax(2).unsqueeze(-1) * votes).sum(1))
        length = torch.linalg.vector_norm(out, dim=-1)
        wanted = F.one_hot(labels, 4).to(length.dtype)
        margin = wanted * F.relu(0.9 - length) ** 2 + 0.5 * (1 - wanted) * F.relu(length - 0.1) ** 2
        return margin.sum(1).mean(), length


# ---- generative and self-supervised --------------------------------------------------------------


class Vae(nn.Module):
    """A variational autoencoder; the noise is an input, so that runs can be compared."""

    def __init__(self, latent: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ELU(), nn.Flatten())
        self.moments = nn.Linear(8 * 64, 2 * latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, 8 * 64),
            nn.ELU(),
            nn.Unflatten(1, (8, 8, 8)),
            nn.ConvTranspose2d(8, 3, 4, 2, 1),
        )

    def forward(self, images: Tensor, noise: Tensor) -> Result:
        """The evidence bound, and the reconstruction."""
        mean, log_variance = self.moments(self.encoder(images)).chunk(2, dim=1)
        decoded = self.decoder(mean + torch.exp(0.5 * log_variance) * noise)
        target = images.sigmoid()
        fit = F.binary_cross_entropy_with_logits(decoded, target, reduction="sum") / len(images)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return fit + divergence, decoded


class VectorQuantizer(nn.Module):
    """A VQ-VAE: straight-through codes, whose book is a buffer with moving averages."""

    codes: Tensor
    counts: Tensor

    def __init__(self, codes: int = 12, width: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, width, 4, 4)
        self.decoder = nn.ConvTranspose2d(width, 3, 4, 4)
        self.register_buffer("codes", torch.randn(codes, width) * 0.5)
        self.register_buffer("counts", torch.ones(codes))

    def forward(self, images: Tensor, _unused: Tensor | None = None) -> Result:
        """Reconstruction and commitment, and the chosen codes."""
        latent = self.encoder(images).permute(0, 2, 3, 1)
        flat = latent.reshape(-1, latent.shape[-1])
        chosen = torch.cdist(flat, self.codes).argmin(1)
        found = F.embedding(chosen, self.codes).view_as(latent)
        if self.training:
            with torch.no_grad():
                hits = F.one_hot(chosen, len(self.codes)).to(flat.dtype)
                self.counts.mul_(0.9).add_(hits.sum(0), alpha=0.1)
                means = hits.t() @ flat / hits.sum(0).clamp(min=1).unsqueeze(1)
                self.codes.lerp_(means, 0.1)
        commitment = F.mse_loss(latent, found.detach())
        through = latent + (found - latent).detach()
        decoded = self.decoder(through.permute(0, 3, 1, 2))
        return F.mse_loss(decoded, images) + 0.25 * commitment, decoded, chosen


class Discriminator(nn.Module):
    """A GAN's discriminator with spectral norm, under the hinge loss."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            spectral_norm(nn.Conv2d(3, width, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
            spectral_norm(nn.Conv2d(width, 2 * width, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Flatten(),
        )
        self.head = spectral_norm(nn.Linear(2 * width * 16, 1))

    def forward(self, real: Tensor, fake: Tensor) -> Result:
        """Hinge loss over real and made images, and the scores."""
        scores = self.head(self.layers(torch.cat([real, fake]))).squeeze(1)
        genuine, made = scores.split((len(real), len(fake)))
        return F.relu(1 - genuine).mean() + F.relu(1 + made).mean(), scores


class CouplingFlow(nn.Module):
    """RealNVP: affine couplings over alternating halves, trained by likelihood."""

    masks: Tensor

    def __init__(self, width: int = 6, layers: int = 3) -> None:
        super().__init__()
        self.register_buffer("masks", torch.stack([torch.arange(width) % 2] * layers).float())
        self.masks[1::2] = 1 - self.masks[1::2]
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 2 * width))
            for _ in range(layers)
        )

    def forward(self, points: Tensor) -> Result:
        """Negative log-likelihood, and the latent points."""
        x, volume = points, points.new_zeros(len(points))
        for mask, net in zip(self.masks, self.nets, strict=True):
            scale, shift = net(x * mask).chunk(2, dim=1)
            scale = torch.tanh(scale) * (1 - mask)
            x = x * scale.exp() + shift * (1 - mask)
            volume = volume + scale.sum(1)
        likelihood = torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(1) + volume
        return -likelihood.mean(), x


class Contrastive(nn.Module):
    """SimCLR: two views of a batch, and every other image as a negative."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.head = nn.Linear(32, width)

    def forward(self, first: Tensor, second: Tensor) -> Result:
        """The NT-Xent loss and the similarities."""
        x = F.normalize(self.head(self.encoder(torch.cat([first, second])).flatten(1)), dim=1)
        similar = x @ x.t() / 0.5
        itself = torch.eye(len(x), dtype=torch.bool, device=x.device)
        size = len(first)
        partner = (torch.arange(2 * size, device=x.device) + size) % (2 * size)
        return F.cross_entropy(similar.masked_fill(itself, -1e9), partner), similar


class RadianceField(nn.Module):
    """NeRF: positions as waves, an MLP with a skip, and colors composited along each ray."""

    def __init__(self, width: int = 32, waves: int = 3) -> None:
        super().__init__()
        self.waves = waves
        inside = 3 + 6 * waves
        self.first = nn.Sequential(nn.Linear(inside, width), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(width + inside, width), nn.ReLU())
        self.head = nn.Linear(width, 4)

    def forward(self, origins: Tensor, directions: Tensor, colors: Tensor) -> Result:
        """Squared error of the colors, and the colors."""
        depths = torch.linspace(0.5, 2.0, 6, device=origins.device, dtype=origins.dtype)
        points = origins[:, None] + directions[:, None] * depths[:, None]
        angles = torch.cat([points * 2.0**i for i in range(self.waves)], dim=-1)
        x = torch.cat([points, angles.sin(), angles.cos()], dim=-1)
        raw = self.head(self.second(torch.cat([self.first(x), x], dim=-1)))
        opacity = 1 - torch.exp(-F.softplus(raw[..., 3]) * (depths[1] - depths[0]))
        clear = torch.cumprod(1 - opacity + 1e-10, dim=1)
        weights = opacity * torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], dim=1)
        rendered = (weights.unsqueeze(-1) * raw[..., :3].sigmoid()).sum(1)
        return F.mse_loss(rendered, colors), rendered


class OrdinaryDifferentialEquation(nn.Module):
    """A neural ODE: one small network stepped by Runge and Kutta's method."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width + 1, 16), nn.Softplus(), nn.Linear(16, width))

    def _slope(self, time: float, x: Tensor) -> Tensor:
        return self.net(F.pad(x, (0, 1), value=time))

    def forward(self, start: Tensor, end: Tensor, steps: int = 4) -> Result:
        """Squared error at the end, and the end."""
        x, h = start, 1.0 / steps
        for i in range(steps):
            t = i * h
            a = self._slope(t, x)
            b = self._slope(t + h / 2, x + h / 2 * a)
            c = self._slope(t + h / 2, x + h / 2 * b)
            d = self._slope(t + h, x + h * c)
            x = x + h / 6 * (a + 2 * b + 2 * c + d)
        return F.huber_loss(x, end), x


# ---- batches -------------------------------------------------------------------------------------


def _image(size: int) -> Tensor:
    return torch.randn(size, 3, 16, 16)


def _labelled(size: int, _: int) -> Batch:
    return {"images": _image(size), "labels": torch.randint(4, (size,))}


def _diffused(size: int, _: int) -> Batch:
    return {"images": _image(size), "noise": _image(size), "steps": torch.randint(50, (size,))}


def _detected(size: int, _: int) -> Batch:
    hits = (torch.rand(size, 2, 8, 8) < 0.1).float()
    return {"images": _image(size), "hits": hits, "boxes": torch.rand(size, 4, 8, 8) * 4}


def _rays(size: int, length: int) -> Batch:
    count = size * length
    return {
        "origins": torch.randn(count, 3),
        "directions": F.normalize(torch.randn(count, 3), dim=1),
        "colors": torch.rand(count, 3),
    }


IMAGES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Any]]] = {
    "unet": (
        Unet,
        lambda size, _: {"images": _image(size), "classes": torch.randint(3, (size, 16, 16))},
    ),
    "diffusion-unet": (DiffusionUnet, _diffused),
    "feature-pyramid": (FeaturePyramid, _detected),
    "densenet": (DenseNet, _labelled),
    "mobilenet": (MobileNet, _labelled),
    "mlp-mixer": (MlpMixer, _labelled),
    "capsules": (CapsuleNet, _labelled),
    "vae": (Vae, lambda size, _: {"images": _image(size), "noise": torch.randn(size, 4)}),
    "vq-vae": (VectorQuantizer, lambda size, _: {"images": _image(size)}),
    "discriminator": (
        Discriminator,
        lambda size, _: {"real": _image(size), "fake": _image(size)},
    ),
    "coupling-flow": (CouplingFlow, lambda size, _: {"points": torch.randn(size, 6)}),
    "contrastive": (Contrastive, lambda size, _: {"first": _image(size), "second": _image(size)}),
    "radiance-field": (RadianceField, _rays),
    "neural-ode": (
        OrdinaryDifferentialEquation,
        lambda size, _: {"start": torch.randn(size, 4), "end": torch.randn(size, 4)},
    ),
}
"""By name: a function that makes the module, and one that makes a batch of a size and a length."""
