"""The table of torch's operators: a family a block, an operator a line.

A line is ``kinds | name | arguments | extras``. Letters of kinds: r rows, t tokens, l line, i image, v volume, n
indices (see `seed.KINDS`); ``*`` stands for all but indices. The sizes and ranges are our own choice.
"""

from __future__ import annotations

TABLE = """
[linear]
rt | nn.Linear | {D}, {O}
rt | nn.Bilinear | {D}, {D}, {small}
rt | F.linear | {x}, {a}, {b} | a=O,D; b=O
rt | torch.matmul | {x}, {a} | a=D,O
r | torch.mm | {x}, {a} | a=D,O
r | torch.addmm | {b}, {x}, {a} | a=D,O; b=O
[batched product]
t | torch.bmm | {x}, {a} | a=B,D,small
t | torch.baddbmm | {b}, {x}, {a} | a=B,D,small; b=B,T,small
t | torch.einsum | 'btd,bsd->bts', {x}, {x}
rt | torch.inner | {x}, {a} | a=small,D
rt | torch.tensordot | {x}, {a}, dims=1 | a=D,O
r | torch.outer | {x}.mean(dim=1), {a} | a=D
rt | torch.kron | {x}, {a} | a=1,2
r | torch.mv | {x}, {a} | a=D
[convolution]
l | nn.Conv1d | {C}, {O}, {k}, padding={p}
i | nn.Conv2d | {C}, {O}, {k}, padding={p}
v | nn.Conv3d | {C}, {small}, 3, padding=1
l | F.conv1d | {x}, {a}, stride=2 | a=O,C,3
i | F.conv2d | {x}, {a}, padding=2, dilation=2 | a=O,C,3,3
v | F.conv3d | {x}, {a}, stride=2 | a=small,C,3,3,3
[grouped convolution]
l | nn.Conv1d | {C}, {C}, 5, padding=2, groups={C}
i | nn.Conv2d | {C}, {C}, {k}, padding={p}, groups={C}
i | nn.Conv2d | {C}, {C}, 3, padding=1, groups={G}
v | nn.Conv3d | {C}, {C}, 3, padding=1, groups={C}
[transposed convolution]
l | nn.ConvTranspose1d | {C}, {small}, 4, stride=2, padding=1
i | nn.ConvTranspose2d | {C}, {small}, 4, stride=2, padding=1
v | nn.ConvTranspose3d | {C}, {small}, 2, stride=2
l | F.conv_transpose1d | {x}, {a}, stride=2 | a=C,small,3
i | F.conv_transpose2d | {x}, {a}, stride=2 | a=C,small,3,3
v | F.conv_transpose3d | {x}, {a}, stride=2 | a=C,small,2,2,2
[average pooling]
l | nn.AvgPool1d | 3, stride=2
i | nn.AvgPool2d | {k}, stride=2, padding={p}
v | nn.AvgPool3d | 2
l | F.avg_pool1d | {x}, 2
i | F.avg_pool2d | {x}, 3, stride=1, padding=1, count_include_pad=False
l | nn.LPPool1d | 2, 3, stride=2
i | nn.LPPool2d | 2, 2
i | F.lp_pool2d | {x}, 2, 3, stride=2
[maximum pooling]
l | nn.MaxPool1d | 3, stride=2
i | nn.MaxPool2d | {k}, stride=2, padding={p}
v | nn.MaxPool3d | 2
l | F.max_pool1d | {x}, 2
i | F.max_pool2d | {x}, 3, stride=1, padding=1
v | F.max_pool3d | {x}, 3, stride=2
[adaptive pooling]
l | nn.AdaptiveAvgPool1d | 16
i | nn.AdaptiveAvgPool2d | 7
v | nn.AdaptiveAvgPool3d | 4
l | nn.AdaptiveMaxPool1d | 12
i | nn.AdaptiveMaxPool2d | 8
i | F.adaptive_avg_pool2d | {x}, (5, 6)
l | F.adaptive_avg_pool1d | {x}, 9
[layer normalization]
rt | nn.LayerNorm | {D}
rt | F.layer_norm | {x}, ({D},)
rt | F.layer_norm | {x}, ({D},), {a}, {b} | a=D; b=D
[root mean square normalization]
rt | nn.RMSNorm | {D}, eps=1e-6
rt | F.rms_norm | {x}, ({D},), {a}, 1e-6 | a=D
[batch normalization]
l | nn.BatchNorm1d | {C}
i | nn.BatchNorm2d | {C}
v | nn.BatchNorm3d | {C}
i | F.batch_norm | {x}, {a}.detach(), {b}.detach().abs() + 0.5 | a=C; b=C
[group normalization]
liv | nn.GroupNorm | {G}, {C}
li | F.group_norm | {x}, {G}, {a}, {b} | a=C; b=C
[instance normalization]
l | nn.InstanceNorm1d | {C}, affine=True
i | nn.InstanceNorm2d | {C}, affine=True
v | nn.InstanceNorm3d | {C}
li | F.instance_norm | {x}
[vector normalization]
rt | F.normalize | {x}, dim=-1
li | F.normalize | {x}, p=1.0, dim=1
li | nn.LocalResponseNorm | 5
li | F.local_response_norm | {x}, 3
rt | torch.renorm | {x}, 2, 0, 3.0
[rectifier]
* | nn.ReLU |
* | nn.LeakyReLU | 0.1
* | nn.ReLU6 |
li | nn.PReLU | {C}
* | F.relu | {x}
* | F.leaky_relu | {x}, 0.2
* | torch.relu | {x}
* | nn.Threshold | 0.1, -0.5
* | nn.RReLU | 0.1, 0.3
* | F.threshold | {x}, 0.2, 0.1
[exponential rectifier]
* | nn.ELU | 0.8
* | nn.SELU |
* | nn.CELU | 1.2
* | nn.Softplus |
* | F.elu | {x}
* | F.selu | {x}
* | F.celu | {x}, 0.7
* | F.softplus | {x}, beta=2.0
[gelu and silu]
* | nn.GELU |
* | nn.GELU | approximate='tanh'
* | nn.SiLU |
* | nn.Mish |
* | F.gelu | {x}
* | F.silu | {x}
* | F.mish | {x}
* | nn.Hardswish |
* | F.hardswish | {x}
[sigmoid]
* | nn.Sigmoid |
* | nn.LogSigmoid |
* | nn.Hardsigmoid |
* | torch.sigmoid | {x}
* | F.logsigmoid | {x}
* | F.hardsigmoid | {x}
* | torch.special.expit | {x} * 0.5
[hyperbolic]
* | nn.Tanh |
* | nn.Tanhshrink |
* | nn.Hardtanh | -1.5, 1.5
* | torch.tanh | {x}
* | torch.asinh | {x}
* | torch.sinh | {x}.clamp(-3, 3)
* | torch.cosh | {x}.clamp(-3, 3)
* | torch.atanh | {x}.clamp(-0.9, 0.9)
* | F.tanhshrink | {x}
[shrinkage]
* | nn.Softshrink | 0.3
* | nn.Hardshrink | 0.4
* | nn.Softsign |
* | F.softshrink | {x}, 0.2
* | F.hardshrink | {x}, 0.3
* | F.softsign | {x}
[exponential and logarithm]
* | torch.exp | {x}.clamp(max=4)
* | torch.exp2 | {x}.clamp(max=4)
* | torch.expm1 | {x}.clamp(max=3)
* | torch.log | {x}.abs() + 0.1
* | torch.log1p | {x}.abs()
* | torch.log2 | {x}.abs() + 0.25
* | torch.log10 | {x}.abs() + 0.5
* | torch.logaddexp | {x}, {a} | a=same
* | torch.logit | {x}.sigmoid(), eps=1e-3
* | torch.xlogy | {x}, {a}.abs() + 0.1 | a=same
[power and root]
* | torch.square | {x}
* | torch.sqrt | {x}.abs() + 0.01
* | torch.rsqrt | {x}.abs() + 0.1
* | torch.pow | {x}, 3
* | torch.pow | {x}.abs() + 0.1, 0.75
* | torch.reciprocal | {x}.abs() + 0.5
* | torch.hypot | {x}, {a} | a=same
* | torch.float_power | {x}.abs() + 0.2, 0.5
[trigonometric]
* | torch.sin | {x}
* | torch.cos | {x}
* | torch.atan | {x}
* | torch.atan2 | {x}, {a} | a=same
* | torch.tan | {x}.clamp(-1, 1)
* | torch.asin | {x}.clamp(-0.9, 0.9)
* | torch.acos | {x}.clamp(-0.9, 0.9)
* | torch.sinc | {x}
[special functions]
* | torch.erf | {x}
* | torch.erfc | {x}
* | torch.lgamma | {x}.abs() + 1
* | torch.digamma | {x}.abs() + 1
* | torch.special.i0e | {x}
* | torch.special.entr | {x}.sigmoid()
* | torch.special.ndtr | {x}
* | torch.special.log_ndtr | {x}
* | torch.special.erfcx | {x}.abs()
[rounding and sign]
* | torch.abs | {x}
* | torch.neg | {x}
* | torch.frac | {x} * 3
* | torch.floor | {x} * 4
* | torch.round | {x} * 4
* | torch.trunc | {x} * 3
* | torch.copysign | {x}, {a} | a=same
* | torch.fmod | {x}, 0.7
* | torch.remainder | {x}, 0.6
* | torch.nan_to_num | {x}
[clamping]
* | torch.clamp | {x}, -1.0, 1.2
* | torch.clamp_min | {x}, -0.3
* | torch.clamp_max | {x}, 0.8
* | torch.maximum | {x}, {a} | a=same
* | torch.minimum | {x}, {a} | a=same
* | torch.fmax | {x}, {a} | a=same
* | torch.fmin | {x}, {a} | a=same
[arithmetic]
* | torch.add | {x}, {a}, alpha=0.5 | a=same
* | torch.sub | {x}, {a} | a=same
* | torch.mul | {x}, {a} | a=same
rt | torch.mul | {x}, {a} | a=D
* | torch.div | {x}, {a}.abs() + 0.5 | a=same
* | torch.addcmul | {x}, {a}, {b}, value=0.3 | a=same; b=same
* | torch.addcdiv | {x}, {a}, {b}.abs() + 1 | a=same; b=same
* | torch.lerp | {x}, {a}, 0.3 | a=same
rt | torch.rsub | {x}, {a} | a=D
[selection]
* | torch.where | {x} > 0.1, {x}, {a} | a=same
* | torch.masked_fill | {x}, {a} > 0.4, 0.25 | a=same
* | torch.heaviside | {x}.round(), {a} | a=same
rt | torch.take_along_dim | {x}, {x}.argsort(dim=-1), dim=-1
rt | torch.index_select | {x}, 0, {a} | a=first:first
rt | torch.gather | {x}, -1, {a} | a=D:same
[softmax]
rt | nn.Softmax | dim=-1
rt | torch.softmax | {x}, dim=-1
rt | F.softmax | {x} * 2, dim=-1
li | torch.softmax | {x}, dim=1
rt | nn.Softmin | dim=-1
i | nn.Softmax2d |
[log softmax]
rt | nn.LogSoftmax | dim=-1
rt | torch.log_softmax | {x}, dim=-1
rt | torch.logsumexp | {x}, dim=-1, keepdim=True
li | torch.logsumexp | {x}, dim=1, keepdim=True
rt | F.log_softmax | {x}, dim=-1
[gated unit]
rt | nn.GLU |
l | nn.GLU | dim=1
i | F.glu | {x}, dim=1
rt | F.glu | {x}
[sum and mean]
rt | torch.sum | {x}, dim=-1, keepdim=True
rt | torch.mean | {x}, dim=-1
li | torch.mean | {x}, dim=(-1,)
i | torch.mean | {x}, dim=(2, 3)
t | torch.mean | {x}, dim=1
i | torch.sum | {x}, dim=1
r | torch.nansum | {x}, dim=1
rt | torch.prod | {x} * 0.05 + 1, dim=-1, keepdim=True
[extreme]
rt | torch.amax | {x}, dim=-1, keepdim=True
rt | torch.amin | {x}, dim=-1
t | torch.amax | {x}, dim=1
i | torch.amax | {x}, dim=(2, 3)
rt | torch.argmax | {x}, dim=-1
i | torch.argmin | {x}, dim=1
[variance]
rt | torch.var | {x}, dim=-1, keepdim=True
rt | torch.std | {x}, dim=-1
i | torch.var | {x}, dim=(2, 3)
t | torch.std | {x}, dim=1
[vector norm]
rt | torch.linalg.vector_norm | {x}, dim=-1, keepdim=True
i | torch.linalg.vector_norm | {x}, ord=1, dim=1
rt | torch.norm | {x}, p=2, dim=-1
[cumulative]
rtl | torch.cumsum | {x}, dim=-1
t | torch.cumsum | {x}, dim=1
rt | torch.cumprod | {x} * 0.01 + 1, dim=-1
rt | torch.logcumsumexp | {x}, dim=-1
rt | torch.diff | {x}, dim=-1
[sorting]
rt | torch.sort | {x}, dim=-1 [0]
rt | torch.topk | {x}, {small}, dim=-1 [0]
rt | torch.median | {x}, dim=-1 [0]
rt | torch.kthvalue | {x}, 5, dim=-1 [0]
rt | torch.cummax | {x}, dim=-1 [0]
rt | torch.argsort | {x}, dim=-1
rt | torch.msort | {x}
[transposition]
t | torch.transpose | {x}, 1, 2
i | torch.permute | {x}, (0, 2, 3, 1)
i | torch.flatten | {x}, 2
t | torch.flatten | {x}, 1
i | torch.movedim | {x}, 1, -1
l | torch.swapaxes | {x}, 1, 2
[rearrangement]
* | torch.flip | {x}, dims=(-1,)
* | torch.roll | {x}, 3, dims=-1
i | torch.rot90 | {x}, 1, (2, 3)
i | nn.PixelShuffle | 2
i | nn.PixelUnshuffle | 2
i | nn.ChannelShuffle | {G}
i | F.pixel_shuffle | {x}, 2
[folding]
i | nn.Unfold | 3, padding=1
i | F.unfold | {x}, 2, stride=2
[padding]
l | nn.ConstantPad1d | 2, 0.3
i | nn.ConstantPad2d | 2, 0.5
l | nn.ReflectionPad1d | 3
i | nn.ReflectionPad2d | 2
l | nn.ReplicationPad1d | 2
i | nn.ReplicationPad2d | 3
i | nn.ZeroPad2d | 1
i | nn.CircularPad2d | 1
i | F.pad | {x}, (1, 2, 1, 2)
[joining]
rtli | torch.cat | [{x}, {a}], dim=1 | a=same
rt | torch.stack | [{x}, {a}], dim=1 | a=same
i | torch.cat | [{x}, {x}.flip(2)], dim=1
rt | torch.tile | {x}, (1, 2) + (1,) * ({rank} - 2)
rt | torch.repeat_interleave | {x}, 2, dim=-1
[interpolation]
l | nn.Upsample | scale_factor=2
i | nn.Upsample | scale_factor=2, mode='nearest'
i | nn.UpsamplingBilinear2d | scale_factor=2
i | F.interpolate | {x}, scale_factor=1.5, mode='bilinear', align_corners=False
i | F.interpolate | {x}, scale_factor=2, mode='bicubic'
l | F.interpolate | {x}, scale_factor=2, mode='linear'
i | nn.UpsamplingNearest2d | scale_factor=2
[sampling a grid]
i | F.grid_sample | {x}, {a}.tanh(), align_corners=False | a=B,16,16,2
i | F.affine_grid | {x}.mean(dim=(1, 2, 3)).view(-1, 1, 1) * {a} + 0.1, (B, C, 16, 16), align_corners=False | a=2,3
[triangular]
t | torch.tril | {x}
t | torch.triu | {x}
t | torch.diagonal | {x}, dim1=1, dim2=2
t | torch.diag_embed | {x}.mean(dim=1)
[distance]
r | nn.CosineSimilarity + | dim=-1 | a=same
rt | F.cosine_similarity | {x}, {a}, dim=-1 | a=same
rt | F.pairwise_distance | {x}, {a} | a=same
t | torch.cdist | {x}, {a} | a=B,small,D
r | nn.PairwiseDistance + | | a=same
[regression loss]
* | nn.MSELoss + | | a=same
* | F.mse_loss | {x}, {a} | a=same
* | nn.L1Loss + | reduction='none' | a=same
* | nn.SmoothL1Loss + | | a=same
* | nn.HuberLoss + | delta=0.7 | a=same
* | F.smooth_l1_loss | {x}, {a}, reduction='none' | a=same
* | F.huber_loss | {x}, {a}, reduction='none' | a=same
* | F.poisson_nll_loss | {x}.clamp(max=3), {a}.abs() | a=same
[classification loss]
r | F.cross_entropy | {x}, {a} | a=D:first
r | nn.CrossEntropyLoss + | reduction='none' | a=D:first
r | F.nll_loss | {x}, {a}, reduction='none' | a=D:first
* | nn.BCEWithLogitsLoss + | reduction='none' | a=same
* | F.binary_cross_entropy_with_logits | {x}, {a}.sigmoid() | a=same
rt | F.kl_div | {x}, {a}.softmax(dim=-1), reduction='none' | a=same
* | F.soft_margin_loss | {x}, {a}.tanh(), reduction='none' | a=same
r | F.multilabel_soft_margin_loss | {x}, {a}.sigmoid(), reduction='none' | a=same
* | F.hinge_embedding_loss | {x}, {a}.sign(), reduction='none' | a=same
r | F.multi_margin_loss | {x}, {a}, reduction='none' | a=D:first
[ranking loss]
r | F.triplet_margin_loss | {x}, {a}, {b}, reduction='none' | a=same; b=same
r | nn.TripletMarginLoss + | | a=same; b=same
* | F.margin_ranking_loss | {x}, {a}, {b}.sign(), margin=0.5, reduction='none' | a=same; b=same
r | F.cosine_embedding_loss | {x}, {a}, {b}.sign(), margin=0.1, reduction='none' | a=same; b=first
[embedding]
n | nn.Embedding | {V}, {O}
n | F.embedding | {x}, {a} | a=V,O
n | nn.EmbeddingBag | {V}, {O}
n | F.embedding_bag | {x}, {a}, mode='sum' | a=V,O
[scatter]
rt | torch.scatter_add | {x}, -1, {a}, {b} | a=D:same; b=same
rt | torch.index_add | {x}, 0, {a}, {b} | a=first:first; b=same
rt | torch.scatter_reduce | {x}, -1, {a}, {b}, reduce='amax' | a=D:same; b=same
[attention]
t | F.scaled_dot_product_attention | {x}, {x}, {x}
t | F.scaled_dot_product_attention | {x}, {a}, {b} | a=same; b=same
t | F.scaled_dot_product_attention | {x}, {a}, {a}, is_causal=True | a=same
[transformer layer]
t | nn.TransformerEncoderLayer | {D}, {heads}, 2 * {D}, batch_first=True, norm_first=True
t | nn.TransformerEncoderLayer | {D}, {heads}, {D}, activation='gelu', batch_first=True
t | nn.TransformerDecoderLayer + | {D}, {heads}, 2 * {D}, batch_first=True | a=same
[recurrent]
r | nn.GRUCell | {D}, {small}
r | nn.RNNCell | {D}, {small}
"""

LETTERS = {
    "r": "rows",
    "t": "tokens",
    "l": "line",
    "i": "image",
    "v": "volume",
    "n": "indices",
}
