"""Layers and networks of torch-geometric over a small graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLAIN = [
    "ARMAConv",
    "CGConv",
    "ClusterGCNConv",
    "EGConv",
    "FAConv",
    "FeaStConv",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GENConv",
    "GatedGraphConv",
    "GeneralConv",
    "GraphConv",
    "LEConv",
    "LGConv",
    "MFConv",
    "ResGatedGraphConv",
    "SAGEConv",
    "SGConv",
    "SSGConv",
    "SuperGATConv",
    "TAGConv",
    "TransformerConv",
    "APPNP",
    "AGNNConv",
    "DirGNNConv",
    "FiLMConv",
    "HypergraphConv",
    "PDNConv",
    "AntiSymmetricConv",
]
NETWORKS = ["GCN", "GraphSAGE", "GIN", "GAT", "PNA", "EdgeCNN"]
POOLS = ["global_add_pool", "global_mean_pool", "global_max_pool"]
AGGREGATIONS = [
    "SumAggregation",
    "MeanAggregation",
    "MaxAggregation",
    "MinAggregation",
    "StdAggregation",
    "VarAggregation",
    "MulAggregation",
    "SoftmaxAggregation",
    "PowerMeanAggregation",
    "MedianAggregation",
    "AttentionalAggregation",
    "SortAggregation",
    "LSTMAggregation",
    "DeepSetsAggregation",
    "Set2Set",
]
NORMS = [
    "BatchNorm",
    "InstanceNorm",
    "LayerNorm",
    "GraphNorm",
    "PairNorm",
    "MeanSubtractionNorm",
    "GraphSizeNorm",
    "MessageNorm",
    "DiffGroupNorm",
]
NODES, EDGES, FEATURES = 9, 20, 8


def cases() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Return layers with a graph, by name."""
    import torch
    from torch import nn
    from torch_geometric import nn as geometric

    def graph(*more: Any) -> tuple[Any, ...]:
        return (torch.randn(NODES, FEATURES), torch.randint(0, NODES, (2, EDGES)), *more)

    def layer(name: str) -> Any:
        kind = getattr(geometric, name)
        special = {
            "CGConv": lambda: kind(FEATURES),
            "FAConv": lambda: kind(FEATURES),
            "LGConv": lambda: kind(),
            "GatedGraphConv": lambda: kind(FEATURES, 2),
            "APPNP": lambda: kind(3, 0.1),
            "AGNNConv": lambda: kind(),
            "SSGConv": lambda: kind(FEATURES, 8, alpha=0.1),
            "EGConv": lambda: kind(FEATURES, 8),
            "DirGNNConv": lambda: kind(geometric.SAGEConv(FEATURES, 8)),
            "PDNConv": lambda: kind(FEATURES, 8, 3, 4),
            "AntiSymmetricConv": lambda: kind(FEATURES),
        }
        return special[name]() if name in special else kind(FEATURES, 8)

    def seeded(build: Callable[[], tuple[Any, tuple[Any, ...]]]) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
        def make() -> tuple[Any, tuple[Any, ...]]:
            torch.manual_seed(0)
            module, inputs = build()
            return module.eval(), inputs

        return make

    class Called(nn.Module):  # type: ignore[misc]
        """A function as a module."""

        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, *inputs: Any) -> Any:
            """Call the function."""
            return self.function(*inputs)

    batch = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
    result: dict[str, Any] = {}
    for name in PLAIN:
        if hasattr(geometric, name):
            extra = (torch.randn(EDGES, 3),) if name == "PDNConv" else ()
            if name == "FAConv":
                result[name] = seeded(lambda name=name: (layer(name), (graph()[0], *graph())))
            else:
                result[name] = seeded(lambda name=name, extra=extra: (layer(name), graph(*extra)))

    def perceptron() -> Any:
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 8))

    result["GINConv"] = seeded(lambda: (geometric.GINConv(perceptron()), graph()))
    result["GINEConv"] = seeded(lambda: (geometric.GINEConv(perceptron()), graph(torch.randn(EDGES, FEATURES))))
    result["EdgeConv"] = seeded(
        lambda: (geometric.EdgeConv(nn.Sequential(nn.Linear(2 * FEATURES, 8), nn.ReLU())), graph())
    )
    result["NNConv"] = seeded(
        lambda: (geometric.NNConv(FEATURES, 4, nn.Linear(3, FEATURES * 4)), graph(torch.randn(EDGES, 3)))
    )
    result["GMMConv"] = seeded(lambda: (geometric.GMMConv(FEATURES, 4, 2, 3), graph(torch.rand(EDGES, 2))))
    result["ChebConv"] = seeded(lambda: (geometric.ChebConv(FEATURES, 4, 3), graph()))
    result["RGCNConv"] = seeded(lambda: (geometric.RGCNConv(FEATURES, 4, 3), graph(torch.randint(0, 3, (EDGES,)))))
    result["RGATConv"] = seeded(lambda: (geometric.RGATConv(FEATURES, 4, 3), graph(torch.randint(0, 3, (EDGES,)))))
    result["PNAConv"] = seeded(
        lambda: (
            geometric.PNAConv(
                FEATURES, 8, ["mean", "max", "std"], ["identity", "amplification"], torch.tensor([0, 3, 4, 2])
            ),
            graph(),
        )
    )
    result["PointNetConv"] = seeded(
        lambda: (geometric.PointNetConv(nn.Linear(FEATURES + 3, 8)), (graph()[0], torch.randn(NODES, 3), graph()[1]))
    )
    result["GCNConv-weights"] = seeded(lambda: (geometric.GCNConv(FEATURES, 8), graph(torch.rand(EDGES))))
    result["GATConv-edges"] = seeded(
        lambda: (geometric.GATConv(FEATURES, 4, heads=2, edge_dim=3), graph(torch.rand(EDGES, 3)))
    )
    result["TransformerConv-edges"] = seeded(
        lambda: (geometric.TransformerConv(FEATURES, 4, heads=2, edge_dim=3), graph(torch.rand(EDGES, 3)))
    )
    for name in NETWORKS:
        options = {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": torch.tensor([0, 3, 4, 2])}
        result[f"net-{name}"] = seeded(
            lambda name=name, options=options: (
                getattr(geometric, name)(FEATURES, 16, 2, 4, **(options if name == "PNA" else {})),
                graph(),
            )
        )
    for name in POOLS:
        function = getattr(geometric, name)
        result[name] = seeded(lambda function=function: (Called(lambda x, b: function(x, b, 3)), (graph()[0], batch)))
    for name in AGGREGATIONS:
        options = {
            "AttentionalAggregation": (nn.Linear(FEATURES, 1),),
            "SortAggregation": (3,),
            "LSTMAggregation": (FEATURES, 8),
            "DeepSetsAggregation": (nn.Linear(FEATURES, 8), nn.Linear(8, 4)),
            "Set2Set": (FEATURES, 2),
        }
        result[name] = seeded(
            lambda name=name, options=options: (
                getattr(geometric.aggr, name)(*options.get(name, ())),
                (graph()[0], batch),
            )
        )
    for name in NORMS:
        options = {"PairNorm": (), "MeanSubtractionNorm": (), "GraphSizeNorm": (), "MessageNorm": ()}
        if name == "DiffGroupNorm":
            result[name] = seeded(lambda: (geometric.DiffGroupNorm(FEATURES, 3), (graph()[0],)))
        elif name == "MessageNorm":
            result[name] = seeded(lambda: (geometric.MessageNorm(True), (graph()[0], torch.randn(NODES, FEATURES))))
        else:
            result[name] = seeded(
                lambda name=name, options=options: (
                    getattr(geometric, name)(*options.get(name, (FEATURES,))),
                    (graph()[0],) if name == "BatchNorm" else (graph()[0], batch),
                )
            )
    for name in ("TopKPooling", "SAGPooling"):
        result[name] = seeded(lambda name=name: (getattr(geometric, name)(FEATURES, 0.5), (*graph(), None, batch)))
    result["dense-gcn"] = seeded(
        lambda: (geometric.DenseGCNConv(FEATURES, 4), (torch.randn(2, 5, FEATURES), torch.rand(2, 5, 5).round()))
    )
    result["dense-diff-pool"] = seeded(
        lambda: (
            Called(geometric.dense_diff_pool),
            (torch.randn(2, 5, FEATURES), torch.rand(2, 5, 5).round(), torch.randn(2, 5, 3)),
        )
    )
    return result
