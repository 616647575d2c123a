from collections.abc import Callable
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor, nn

from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.heads import AuxiliaryHead, ClassTokenHead, GeMHead, PooledHead, PoolHead, TokenMeanHead
from dml.models.networks import bn_inception, resnet, timm_backbone
from dml.runtime.errors import InputError

TAPS = {"L": "stages.0", "M": "stages.1", "H": "stages.2"}
BN_INCEPTION_TAPS = {"L": "inception_3c_output", "M": "inception_4e_output", "H": "inception_5b_output"}
POOL = {"L": PoolHead, "M": PoolHead, "H": PoolHead}
AUXILIARY = {"L": AuxiliaryHead, "M": AuxiliaryHead, "H": PoolHead}
SUBSETS = [list(subset) for size in (1, 2, 3) for subset in combinations("LMH", size)]


class Network(nn.Module):
    """Three stages of 3 to 4, 5 and 6 channels, each halving the map, and a layer behind them."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 4, 5, 6)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
                for a, b in pairwise(widths)
            )
        )
        self.last = nn.Linear(6, 7)
        self.unused = nn.ModuleList([nn.Conv2d(6, 6, 1)])

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.stages(images).mean(dim=(2, 3)))


def backbone(**settings: Any) -> Backbone:
    torch.manual_seed(0)
    return Backbone(Network(), **{"mean": (0.5,) * 3, "std": (0.5,) * 3, "stages": tuple(TAPS.values())} | settings)


def model(**settings: Any) -> EmbeddingModel:
    settings = {"taps": TAPS, "head": POOL, "image_size": 16, "embed_dim": 8} | settings
    return EmbeddingModel(settings.pop("backbone", None) or backbone(), **settings)


def images(count: int = 4, size: int = 16) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(0)).float()


# heads


@pytest.mark.parametrize("heads", [*SUBSETS, ["H", "L"]])
def test_exactly_what_any_heads_in_their_order_reach_is_trained(heads: list[str]) -> None:
    built = model(heads=heads)
    embeddings = built(images())
    assert list(embeddings) == list(built.embed_dims) == heads
    assert {name: tuple(rows.shape) for name, rows in embeddings.items()} == dict.fromkeys(heads, (4, 8))
    assert {key.split(".")[1] for key in built.state_dict() if key.startswith("heads.")} == set(heads)
    sum(rows.square().sum() for rows in embeddings.values()).backward()
    deepest = max("LMH".index(head) for head in heads)
    for name, parameter in built.named_parameters():
        path = name.split(".")
        behind = path[:2] == ["backbone", "network"] and (path[2] != "stages" or int(path[3]) > deepest)
        assert parameter.requires_grad is not behind, name
        assert (parameter.grad is None) is behind, name


def test_each_head_has_its_own_size() -> None:
    sizes = {"L": 3, "M": 64, "H": 5}
    for embed_dim in (sizes, OmegaConf.create(sizes)):
        built = model(embed_dim=embed_dim, heads=["L", "H"])
        embeddings = built(images())
        assert {name: rows.shape[1] for name, rows in embeddings.items()} == {"L": 3, "H": 5}
        assert built.embed_dims == {"L": 3, "H": 5}
        assert built.concatenate(embeddings).shape == (4, 8)


def test_the_backbone_is_in_training_mode_afterwards() -> None:
    """Its statistics have not seen the empty image that the shapes were taken from."""
    built = model()
    fresh = backbone()
    assert all(module.training for module in built.modules())
    torch.testing.assert_close(built.backbone.state_dict(), fresh.state_dict(), rtol=0, atol=0)
    frozen = model(backbone=backbone(freeze_batchnorm="all"))
    assert not frozen.backbone.network.stages[0][1].training


# embeddings


def test_embeddings_are_the_heads_of_the_taps() -> None:
    built = model().eval()
    pixels = (images() / 255 - 0.5) / 0.5
    expected = {}
    for name, stage in zip("LMH", built.backbone.network.stages, strict=True):
        pixels = stage(pixels)
        expected[name] = built.heads[name](pixels)
    torch.testing.assert_close(built(images()), expected)
    assert len({float(rows.detach().sum()) for rows in expected.values()}) == 3


@pytest.mark.parametrize("normalize", [True, False])
def test_normalize(normalize: bool) -> None:
    built = model(normalize=normalize).eval()
    plain = model().eval()
    plain.load_state_dict(built.state_dict())
    for name, rows in plain(images()).items():
        expected = rows / rows.norm(dim=1, keepdim=True) if normalize else rows
        torch.testing.assert_close(built(images())[name], expected)
        assert not torch.allclose(rows.norm(dim=1), torch.ones(4), atol=0.05)


def test_embeddings_are_float32_under_autocast() -> None:
    built = model().eval()
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = built(images())
    assert {rows.dtype for rows in embeddings.values()} == {torch.float32}


def parts(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"L": torch.randn(5, 3, generator=generator), "H": 7 * torch.randn(5, 4, generator=generator)}


def test_concatenation_of_normalized_embeddings() -> None:
    """Each head weighs the same: a similarity is the mean of the heads' cosines."""
    embeddings = parts()
    whole = model(concatenation="normalized").concatenate(embeddings)
    cosines = [F.cosine_similarity(rows[:, None], rows[None], dim=-1) for rows in embeddings.values()]
    assert whole.shape == (5, 7)
    torch.testing.assert_close(whole @ whole.T, sum(cosines) / 2)


def test_concatenation_of_raw_embeddings() -> None:
    embeddings = parts()
    whole = model(concatenation="raw").concatenate(embeddings)
    rows = [torch.tensor([*low, *high]) for low, high in zip(*map(Tensor.tolist, embeddings.values()), strict=True)]
    torch.testing.assert_close(whole, torch.stack([row / row.square().sum().sqrt() for row in rows]))


@pytest.mark.parametrize("concatenation", ["normalized", "raw"])
def test_concatenation_does_not_mind_the_sizes_of_duplicates(concatenation: str) -> None:
    built = model(concatenation=concatenation)
    embeddings = parts()
    torch.testing.assert_close(
        built.concatenate({name: 3 * rows for name, rows in embeddings.items()}),
        built.concatenate(embeddings),
    )
    assert built.concatenate({name: 0 * rows for name, rows in embeddings.items()}).isfinite().all()


def test_raw_features_are_the_networks_own() -> None:
    built = model(heads=["L"]).eval()
    torch.testing.assert_close(built.raw_features(images()), built.backbone.network((images() / 255 - 0.5) / 0.5))


# RLL's BN-Inception


@pytest.fixture(scope="module")
def rll() -> EmbeddingModel:
    with torch.device("meta"):  # its shapes are enough
        return EmbeddingModel(bn_inception(), taps=BN_INCEPTION_TAPS, head=AUXILIARY, embed_dim=512, image_size=224)


@pytest.mark.networks
def test_rlls_heads_at_224(rll: EmbeddingModel) -> None:
    """L: 14 x 14 -> 4 x 4 cells, M: 7 x 7 -> 2 x 2, of 128 channels; H: pooled, no bias."""
    shapes = {name: tuple(value.shape) for name, value in rll.heads.named_parameters() if value.ndim > 1}
    assert shapes == {
        "L.reduction.weight": (128, 576, 1, 1),
        "L.hidden.weight": (1024, 128 * 4 * 4),
        "L.embedding.weight": (512, 1024),
        "M.reduction.weight": (128, 1056, 1, 1),
        "M.hidden.weight": (1024, 128 * 2 * 2),
        "M.embedding.weight": (512, 1024),
        "H.embedding.weight": (512, 1024),
    }
    vectors = {name: tuple(value.shape) for name, value in rll.heads.named_parameters() if value.ndim == 1}
    assert vectors == {
        f"{head}.{layer}": (size,)
        for head in "LM"
        for layer, size in {
            "reduction_norm.weight": 128,
            "reduction_norm.bias": 128,
            "hidden_norm.weight": 1024,
            "hidden_norm.bias": 1024,
            "embedding.bias": 512,
        }.items()
    }


# transformers


@pytest.mark.parametrize(
    ("name", "grid"), [("vit_tiny_patch16_224", (14, 14, 14)), ("swin_tiny_patch4_window7_224", (28, 14, 7))]
)
@pytest.mark.networks
def test_transformers_last_three_stages(name: str, grid: tuple[int, ...]) -> None:
    shapes = []

    def head(shape: tuple[int, int, int], embed_dim: int) -> nn.Module:
        shapes.append(shape)
        return AuxiliaryHead(shape, embed_dim, grid=4)

    network = timm_backbone(name)
    with torch.no_grad():  # as in an evaluation
        built = EmbeddingModel(
            network, taps=None, head={"L": head, "M": head, "H": PoolHead}, embed_dim=8, image_size=224
        )
        embeddings = built.eval()(images(2, 224))
    assert [shape[1:] for shape in shapes] == [(side, side) for side in grid[:2]]
    assert built.heads["H"].embedding.in_features == network.network.num_features
    assert {name: tuple(rows.shape) for name, rows in embeddings.items()} == dict.fromkeys("LMH", (2, 8))
    assert built.backbone.stages[-1] in ("blocks.11", "layers.3")


@pytest.mark.parametrize("tap", ["tokens", "patches", "pooled", "blocks.2"])
@pytest.mark.networks
def test_exactly_what_a_tap_of_a_transformer_reaches_is_trained(tap: str) -> None:
    head = ClassTokenHead if tap == "tokens" else PooledHead if tap == "pooled" else GeMHead
    built = EmbeddingModel(
        timm_backbone("test_vit", any_size=True, freeze_patch_embedding=True),
        taps={"H": tap},
        head={"H": head},
        heads=["H"],
        embed_dim=8,
        image_size=40,
    )
    built(images(2, 40))["H"].square().sum().backward()
    for name, parameter in built.named_parameters():
        path = name.removeprefix("backbone.network.")
        behind = tap == "blocks.2" and path.startswith(("blocks.3.", "blocks.4.", "blocks.5.", "norm."))
        is_frozen = behind or path.startswith("patch_embed.")
        assert parameter.requires_grad is not is_frozen, name
        assert (parameter.grad is None) is is_frozen, name


def test_one_network_takes_images_of_any_size() -> None:
    """The sizes need not be multiples of a patch, and weights of one size fit another."""

    def build(size: int) -> EmbeddingModel:
        heads = {"H": ClassTokenHead, "M": TokenMeanHead, "L": GeMHead}
        taps = {"H": "tokens", "M": "tokens", "L": "patches"}
        network = timm_backbone("test_vit", any_size=True)
        return EmbeddingModel(network, taps=taps, head=heads, embed_dim=8, image_size=size).eval()

    built = build(160)
    with torch.no_grad():
        for size in (16, 50, 112, 160, 171):
            embeddings = built(images(2, size))
            assert {rows.shape for rows in embeddings.values()} == {(2, 8)}
            other = build(size)
            other.load_state_dict(built.state_dict())
            torch.testing.assert_close(other(images(2, size)), embeddings)


# errors


@pytest.mark.parametrize(
    ("tap", "head", "message"),
    [
        ("blocks.5", ClassTokenHead, r"model\.taps\.H=blocks\.5: ClassTokenHead embeds tokens; tap tokens"),
        ("pooled", TokenMeanHead, r"model\.taps\.H=pooled: TokenMeanHead embeds tokens; tap tokens"),
        ("tokens", GeMHead, r"model\.taps\.H=tokens: GeMHead embeds a map; tap patches or a stage"),
        ("patches", PooledHead, r"PooledHead takes pooled features, but the tapped map is 2x2"),
    ],
)
def test_heads_that_do_not_fit_the_tap(tap: str, head: type[nn.Module], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EmbeddingModel(
            timm_backbone("test_vit", any_size=True), taps={"H": tap}, head={"H": head}, heads=["H"], image_size=32
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": ["L", "X"]}, r"model\.heads=\['L', 'X'\]: choose among L, M, H, each once"),
        ({"heads": ["L", "L"]}, r"model\.heads=\['L', 'L'\]: .* each once"),
        ({"head": {"L": PoolHead}, "heads": ["H"]}, r"model\.heads=\['H'\]: choose among"),
        ({"embed_dim": 0}, r"model\.embed_dim\.L=0: must be a whole number, 1 or more"),
        ({"embed_dim": {"L": 8, "M": 0, "H": 8}}, r"model\.embed_dim\.M=0: must be a whole number"),
        ({"embed_dim": {"L": 8, "M": 8, "h": 8}}, r"model\.embed_dim\.H=None: must be a whole number"),
        ({"concatenation": "whitened"}, r"model\.concatenation=whitened: must be normalized or raw"),
        (
            {"taps": {**TAPS, "M": "stages.3"}},
            r"model\.taps\.M=stages\.3: no such module; nearest: .*stages\.\d",
        ),
        ({"taps": {**TAPS, "M": "unused"}}, r"model\.taps\.M=unused: this module's output isn't a map"),
        ({"taps": {**TAPS, "H": "last"}}, r"model\.taps\.H=last: this module's output isn't a map"),
    ],
)
def test_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(**settings)


class OwnHead(nn.Module):
    """A head of a user's that returns what a function makes of an embedding."""

    def __init__(self, change: Callable[[Tensor], Any], shape: tuple[int, int, int], embed_dim: int) -> None:
        super().__init__()
        self.change, self.embed_dim = change, embed_dim

    def forward(self, tapped: Tensor) -> Any:
        assert not self.training  # a batch normalization can't train on one image
        return self.change(torch.zeros(len(tapped), self.embed_dim))


@pytest.mark.parametrize(
    ("change", "returned"),
    [
        (lambda embedding: (embedding, 1), "a tuple"),
        (lambda _: None, "a NoneType"),
        (lambda embedding: embedding[:, 1:], r"a tensor of shape \(1, 7\)"),
        (lambda embedding: embedding[:, :, None, None], r"a tensor of shape \(1, 8, 1, 1\)"),
        (lambda embedding: embedding[0], r"a tensor of shape \(8,\)"),
    ],
)
def test_a_head_that_returns_no_embeddings_of_its_size(change: Callable[[Tensor], Any], returned: str) -> None:

    with pytest.raises(InputError, match=rf"^model\.head\.H: test_embedding_model\.OwnHead returned {returned}"):
        model(head={"H": partial(OwnHead, change)}, heads=["H"])


def test_a_network_that_does_not_name_its_stages() -> None:
    with pytest.raises(InputError, match=r"model\.taps=null: this network doesn't name its stages"):
        EmbeddingModel(resnet("resnet18"), taps=None, head=POOL, image_size=32)


def test_no_taps_takes_the_last_three_stages() -> None:
    built = model(taps=None, heads=["M"])
    assert {
        name for name, parameter in built.named_parameters() if "stages.2" in name and parameter.requires_grad
    } == set()
    assert built.heads["M"].embedding.in_features == 5
