"""Embedding modules for PyTorch whose tables are on a rowraft cluster.

::

    import torch, rowraft, rowraft.torch as rt

    emb = rt.EmbeddingBagCollection(ps, tables=[
        rt.EmbeddingBagConfig(name="user", embedding_dim=16, feature_names=["user_id"], pooling=rt.SUM,
                              optimizer=rt.RowwiseAdagrad(lr=0.05))])
    pooled = emb(rt.KeyedJaggedTensor(["user_id"], values, lengths=lengths))   # or TorchRec's
    loss_of(pooled["user_id"]).backward()                              # pushes the sum of the gradients of each id

The names are those of TorchRec. The modules have no parameters: forward pulls the rows of a batch, once for each id,
and backward pushes their gradients, which the optimizer of the table applies on the servers. A dense optimizer and DDP
see none of it.
"""

from rowraft._localtables import local_tables
from rowraft._schema import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    Add,
    Count,
    Momentum,
    Normal,
    Probability,
    RowwiseAdagrad,
    Uniform,
    Zeros,
)
from rowraft.torch._export import export
from rowraft.torch._jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from rowraft.torch._job import Job
from rowraft.torch._modules import (
    MEAN,
    NONE,
    SUM,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    PoolingType,
    Prepared,
    pool,
    prefetch,
)

__all__ = [
    "FTRL",
    "MEAN",
    "NONE",
    "SGD",
    "SUM",
    "Adagrad",
    "Adam",
    "Add",
    "Count",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "JaggedTensor",
    "Job",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "Momentum",
    "Normal",
    "PoolingType",
    "Prepared",
    "Probability",
    "RowwiseAdagrad",
    "Uniform",
    "Zeros",
    "export",
    "local_tables",
    "pool",
    "prefetch",
]
