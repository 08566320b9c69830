"""How a model sees, as data: a tower of layers over patches of pictures, and what makes rows for the text model of it.

Patches become tokens of the tower. Its layers are the decoder's, and all tokens of a segment see each other: of a tile,
of a window or of a whole picture. What leaves the tower is merged, normalised and multiplied into rows as wide as
the text model's embedding, which stand in for the embeddings of placeholder tokens. Which row is where is computed on
the host, in `jaxengine/model/vision/packing.py`; how many there are, in `picture.py`. No JAX here.
"""

from dataclasses import dataclass, replace
from typing import Literal

from jaxengine.architecture.switches import Activation, Norm, QKNorm, Rope

# Where a patch's position enters the tower:
#   none          not with its embedding
#   learned       a row of a table for each patch of a tile, whose size is fixed
#   bucketised    the table's row nearest to where in its picture the patch is (NaViT: Dehghani et al. 2023, 2307.06304)
#   interpolated  between the four nearest rows of the table, stretched over the picture
Positions = Literal["none", "learned", "bucketised", "interpolated"]

# In which order the merged rows of a picture are laid out:
#   tiles     tile by tile, each row by row
#   unpadded  the first tile, then the others as the one picture that they are cut of, without the padding around it and
#             with a learned row behind each of its rows of patches (LLaVA-NeXT)
Rows = Literal["tiles", "unpadded"]

# What the tokens of a picture see in the text model: what is up to them; their picture too; the whole prompt, as all
# of the prompt's tokens then do.
Horizon = Literal["token", "image", "prompt"]

TILE_PADDING = 8  # a tile among others that it sees is padded to a multiple of so many tokens, as it was trained


def canvases(tiles: int) -> tuple[tuple[int, int], ...]:
    """In how many tiles, downwards and across, a picture may be cut that has at most so many."""
    sides = range(1, tiles + 1)
    return tuple((down, across) for down in sides for across in sides if down * across <= tiles)


@dataclass(frozen=True)
class Tower:
    """Layers over patches. What has a name of `ModelSpec`'s means the same.

    patch_bias: the product that embeds patches has a bias.
    class_token: a learned token in front of each tile; the table of positions begins with its row.
    grid: rows and columns of patches in the table of positions; with `learned` those of every tile. With a rope alone,
        the most that a tile may have. (0, 0) = any.
    rope: turns by a patch's row and column, and has `axes`.
    pre_norm: a norm of the embedded patches.
    post_norm: a norm behind the last layer.
    layer_scale: learned factors of what each branch adds to the residual stream (Touvron et al. 2021, 2103.17239).
    window: the side, in patches, of the squares that layers attend within; 0 = within a tile.
    whole_layers: the layers that attend within a tile nevertheless.
    tiles: the most tiles of a picture, all of which see each other, and what a picture with fewer is padded with; the
        learned positions depend on the number of tiles downwards and across too. 0 = each tile is by itself.
    global_layers: layers behind the post-norm, each branch of which has a gate (Llama 3.2 Vision).
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    ffn_size: int
    norm: Norm
    activation: Activation = "gelu_tanh"
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    qk_norm: QKNorm | None = None
    patch_bias: bool = True
    class_token: bool = False
    positions: Positions = "learned"
    grid: tuple[int, ...] = (0, 0)
    rope: Rope | None = None
    pre_norm: bool = False
    post_norm: bool = True
    layer_scale: bool = False
    window: int = 0
    whole_layers: tuple[int, ...] = ()
    tiles: int = 0
    global_layers: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "head_dim", "ffn_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"vision tower {name} must be at least 1, got {getattr(self, name)}")
        if len(self.grid) != 2 or min(self.grid) < 0:
            raise ValueError(f"vision tower grid must be rows and columns, got {self.grid}")
        if self.positions != "none" and not all(self.grid):
            raise ValueError(f"{self.positions} positions need a grid, got {self.grid}")
        if self.window < 0 or (self.window and self.class_token):
            raise ValueError("windows of a vision tower are of patches alone")
        if self.rope is not None and self.rope.axes is None:
            raise ValueError("the rope of a vision tower needs axes")
        whole = self.positions == "learned" and self.class_token and self.pre_norm and self.post_norm
        if self.tiles and (not whole or self.rope is not None or self.window or self.tokens % TILE_PADDING == 0):
            raise ValueError("tiles that see each other have a class token, both norms, learned positions and padding")

    @property
    def tokens(self) -> int:
        """Tokens of a tile of the grid's size."""
        return self.grid[0] * self.grid[1] + self.class_token

    @property
    def padded_tokens(self) -> int:
        """The same, with what pads each tile where `tiles` see each other."""
        return -(-self.tokens // TILE_PADDING) * TILE_PADDING

    @property
    def canvases(self) -> tuple[tuple[int, int], ...]:
        return canvases(self.tiles)


@dataclass(frozen=True)
class Connector:
    """What leaves the tower → rows of the text model: merge squares of patches, normalise, multiply once or twice.

    product: there is one; else rows are what leaves the tower.
    merge: the side of the squares of patches that become one row. Their features lie behind each other, row by row.
    pooled: the row is their mean instead.
    norm: in front of the merging, or behind it where `norm_merged`.
    squeeze: a product, without bias, of the merged features to the tower's width (Mistral 3).
    inner: the width between two products; 0 = there is one.
    gated: the first product is two, of which the one, activated, multiplies the other (Shazeer 2020, 2002.05202).
    bias: of the products.
    scale: multiplies the rows.
    """

    product: bool = True
    merge: int = 1
    pooled: bool = False
    norm: Norm | None = None
    norm_merged: bool = False
    squeeze: bool = False
    inner: int = 0
    gated: bool = False
    activation: Activation = "gelu"
    bias: bool = True
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.merge < 1 or self.inner < 0:
            raise ValueError(f"connector merge {self.merge} and inner {self.inner} must be positive")
        if self.gated and not self.inner:
            raise ValueError("a gated connector needs an inner width")
        if not self.product and (self.merge > 1 or self.inner or self.squeeze or self.norm is not None):
            raise ValueError("a connector without a product does nothing")


@dataclass(frozen=True)
class Resampler:
    """Learned tokens that read what the connector makes of a tile, and each other; what leaves them are the tile's
    rows, of which there are as many as `latents` whatever its size (Jaegle et al. 2021, arXiv 2103.03206).

    Its layers are the decoder's, without biases, and as wide as the rows; what they read is normalised in each. A norm
    is behind the last. What has a name of `ModelSpec`'s means the same.
    """

    latents: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    norm: Norm
    activation: Activation = "silu"
    gated: bool = True
    qk_norm: QKNorm | None = None

    def __post_init__(self) -> None:
        for name in ("latents", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"resampler {name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"resampler num_heads {self.num_heads} must be a multiple of {self.num_kv_heads}")


@dataclass(frozen=True)
class Vision:
    """The eyes of a `ModelSpec`.

    token: the id whose embeddings are overwritten, each with the next row of a picture.
    patch: pixels on the side of a patch.
    patch_values: numbers of one patch, in the order channel, y, x, or as the picture processor has them.
    resampler: makes the rows of what leaves the connector; None = these are the rows.
    squares: the patches of a tile come in the squares that the connector merges, square by square; else row by row.
    features: how many layers of the tower are behind each of the features that lie side by side; () = all, and the
        post-norm.
    skipped: how many of a tile's first tokens make no row.
    pinpoints: heights and widths, in pixels, of which the best for a picture is cut into tiles; for `unpadded` rows.
    cross: rows stand in for nothing: layers of the text model attend to them (`LayerKind.cross`). A picture has one
        token, and a row of the device's pool is all that these layers read of a tile. It is one tile, unless its tiles
        see each other.
    forgets: the id behind which a prompt's tokens see no picture, until the next one; -1 = there is none.
    deepstack_layers: the layers of the tower behind which further rows are made; the i-th set is added to the residual
        stream behind layer i of the text model (Meng et al. 2024, 2406.04334).
    """

    tower: Tower
    connector: Connector
    token: int
    patch: int
    patch_values: int
    features: tuple[int, ...] = ()
    resampler: Resampler | None = None
    squares: bool = False
    skipped: int = 0
    rows: Rows = "tiles"
    pinpoints: tuple[tuple[int, ...], ...] = ()
    horizon: Horizon = "token"
    cross: bool = False
    forgets: int = -1
    deepstack_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.patch < 1 or self.patch_values < 1 or self.token < 0:
            sizes = f"patch {self.patch}, patch_values {self.patch_values}, token {self.token}"
            raise ValueError(f"vision sizes must be positive, got {sizes}")
        if not all(0 <= layers <= self.tower.num_layers for layers in self.features):
            raise ValueError(f"vision features behind layers {self.features} of {self.tower.num_layers}")
        if self.rows == "unpadded" and (not self.pinpoints or self.skipped != self.tower.class_token):
            raise ValueError("unpadded rows need pinpoints, and a row of every patch and of nothing else")
        if self.resampler is not None and (self.connector.merge > 1 or self.rows != "tiles"):
            raise ValueError("a resampler reads each token of a tile, and makes the rows tile by tile")
        if self.tower.tiles and (not self.cross or self.resampler is not None):
            raise ValueError("of tiles that see each other, layers attend to a row of each token")
        plain = self.rows == "tiles" and self.connector.merge == 1 and not self.deepstack and not self.skipped
        if self.cross and not (plain and self.tile and self.horizon == "token"):
            raise ValueError("layers attend to tiles of one size, to all tokens of each")
        if not self.cross and (not self.connector.product or self.forgets >= 0):
            raise ValueError("rows that stand in for tokens are as wide as these, and seen by all tokens behind")

    @property
    def deepstack_connector(self) -> Connector:
        """What makes each set of rows for deepstack: one more connector, which normalises what it has merged."""
        return replace(self.connector, norm_merged=True)

    @property
    def deepstack(self) -> int:
        """How many sets of rows are added behind layers of the text model."""
        return len(self.deepstack_layers)

    @property
    def tile(self) -> tuple[int, ...]:
        """Rows and columns of patches of every tile; () where they differ.

        With bucketised positions tiles may differ, but models without a resampler are given a fixed number of rows.
        """
        fixed = self.tower.positions == "learned" or (self.tower.positions == "bucketised" and not self.resampler)
        return self.tower.grid if fixed else ()

    @property
    def places(self) -> int:
        """How many keys layers read of a row of the device's pool; 1 where rows stand in for tokens."""
        if not self.cross:
            return 1
        return self.resampler.latents if self.resampler is not None else self.tower.tokens

    def row_size(self, hidden: int) -> int:
        """Width of a row, of a text model as wide as `hidden`."""
        return hidden if self.connector.product else self.feature_size

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """Of each attention the size of a head, and the queries that share a key."""
        tower = (self.tower.head_dim, 1)
        if self.resampler is None:
            return (tower,)
        return tower, (self.resampler.head_dim, self.resampler.num_heads // self.resampler.num_kv_heads)

    @property
    def feature_size(self) -> int:
        """Width of what leaves the tower. Behind global layers, what these have made comes first."""
        return self.tower.hidden_size * max(1, len(self.features) + bool(self.tower.global_layers))
