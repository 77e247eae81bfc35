"""Models of a few parameters, for tests of what engines do with them."""

from collections.abc import Sequence

from vlmplan.architecture.model import NamedParameter, Part
from vlmplan.architecture.parameter import Parameter
from vlmplan.engines.parameters import ParameterTable
from vlmplan.units import DType


class FlatModel:
    """Parameters of the given sizes, all trained, in one element type."""

    def __init__(self, numels: Sequence[int], dtype: DType = DType.BFLOAT16) -> None:
        self._parameters = [Parameter(numel) for numel in numels]
        for parameter in self._parameters:
            parameter.dtype = dtype

    def parameters(self) -> list[NamedParameter]:
        return [NamedParameter(f"p{i}", p, None, Part.LANGUAGE) for i, p in enumerate(self._parameters)]


def table_of(numels: Sequence[int], dtype: DType = DType.BFLOAT16) -> ParameterTable:
    return ParameterTable(FlatModel(numels, dtype))
