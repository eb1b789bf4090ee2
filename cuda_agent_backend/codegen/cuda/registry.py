"""All CUDA kernel families, each once. To add one, write its folder and add its line here."""

from __future__ import annotations

from typing import Any

from cuda_agent_backend.codegen.cuda.attention.family import Float32Attention, HalfAttention
from cuda_agent_backend.codegen.cuda.attention.linear.family import LinearAttention
from cuda_agent_backend.codegen.cuda.attention.pooling.family import AttentionPooling
from cuda_agent_backend.codegen.cuda.channel_gather.family import ChannelGather
from cuda_agent_backend.codegen.cuda.channels_last.family import ChannelsLast
from cuda_agent_backend.codegen.cuda.conv.halo.family import Halo
from cuda_agent_backend.codegen.cuda.conv.transposed.family import TransposedConvolution
from cuda_agent_backend.codegen.cuda.family import JoinFamily, KernelFamily
from cuda_agent_backend.codegen.cuda.gemm.epilogue.glu.family import Glu
from cuda_agent_backend.codegen.cuda.gemm.epilogue.pool.family import Pool
from cuda_agent_backend.codegen.cuda.gemm.epilogue.reduce.family import Reduce
from cuda_agent_backend.codegen.cuda.gemm.epilogue.row.family import RowEpilogue
from cuda_agent_backend.codegen.cuda.gemm.family import Gemm
from cuda_agent_backend.codegen.cuda.gemm.short_k.family import ShortK
from cuda_agent_backend.codegen.cuda.gemm.skinny.family import Skinny
from cuda_agent_backend.codegen.cuda.gemm.small.family import Small
from cuda_agent_backend.codegen.cuda.library.family import LibraryCalls
from cuda_agent_backend.codegen.cuda.pointwise.family import Pointwise
from cuda_agent_backend.codegen.cuda.recurrent.family import RecurrentLayers
from cuda_agent_backend.codegen.cuda.reroll.family import Reroll
from cuda_agent_backend.codegen.cuda.rows.family import Rows
from cuda_agent_backend.codegen.cuda.rows.loss.family import Loss
from cuda_agent_backend.codegen.cuda.scatter.family import ScatterFamily
from cuda_agent_backend.codegen.cuda.sort.family import Selection, Sort
from cuda_agent_backend.codegen.cuda.transpose.family import Transpose
from cuda_agent_backend.codegen.family import Family, TaskFamily

KERNELS: tuple[KernelFamily[Any, Any], ...] = (
    ChannelsLast(),
    ChannelGather(),
    Transpose(),
    Pointwise(),
    Skinny(),
    ShortK(),
    Small(),
    Gemm(),
    TransposedConvolution(),
    Halo(),
    Rows(),
)
"""Of one kernel. They propose in this order within a place (see `family.Place`), and their headers come in it."""
JOINS: tuple[JoinFamily[Any, Any], ...] = (
    RowEpilogue(),
    AttentionPooling(),
    Reduce(),
    Pool(),
    Glu(),
    Loss(),
)
"""Of a kernel with what follows it. Within an order (see `family.Order`) the first that fits is taken."""
TASKS: tuple[TaskFamily[Any], ...] = (
    Float32Attention(),
    HalfAttention(),
    LinearAttention(),
    ScatterFamily(),
    Sort(),
    Selection(),
    RecurrentLayers(),
    Reroll(),
)
"""Of a whole task: the first whose task it is, before its loop nests are looked at."""
LIBRARY = LibraryCalls()
"""Of a whole task, beside the kernels of its loop nests."""
FAMILIES: tuple[Family[Any], ...] = (*KERNELS, *JOINS, LIBRARY, *TASKS)
KERNEL_BY_NAME = {family.name: family for family in KERNELS}
JOIN_BY_NAME = {family.name: family for family in JOINS}
