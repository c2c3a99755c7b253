"""The base class of the attention layers: a call with keys and values, or with a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from numpy.typing import ArrayLike
from torch import Tensor, nn

from attnext._layouts import bias_hint
from attnext._options import as_flag

from .attention import OF_LAYERS, TAKEN_BY_LAYERS, HeadsLayerOptions, LayerOptions
from .autograd import run
from .memory import Memory, is_memory
from .projections import part
from .scripting import refuse_script
from .tensors import drawn_seed


class Layer(nn.Module):
    """Base class of the layers. A layer sets `dropout` after its projections, as in d2l."""

    _taken = TAKEN_BY_LAYERS  # the options of its call
    attention_weights: Tensor | Any  # Any: users need no check for None
    dropout: nn.Dropout

    def __init__(self) -> None:
        super().__init__()
        self.attention_weights = None

    @OF_LAYERS.spelled_out
    def memory(
        self,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | ArrayLike | None = None,
        *,
        mask: Tensor | ArrayLike | None = None,
    ) -> Memory:
        """Project keys and values once, and store them for many calls of the layer.

        See Also
        --------
        attnext.torch.Memory : The class of the result, with an example.

        Examples
        --------
        >>> import torch
        >>> from attnext.torch import DotProductAttention
        >>> attention = DotProductAttention()
        >>> memory = attention.memory(torch.zeros(4, 2), torch.arange(8.0).reshape(4, 2), 3)
        >>> attention(torch.eye(2), memory)
        tensor([[2., 3.],
                [2., 3.]])
        """
        return Memory._of(self, keys, values, valid_lens, mask)

    def _attend(
        self,
        function: str,
        inputs: dict[str, Any],
        own: dict[str, Any],
        need_weights: bool,
        options: LayerOptions | HeadsLayerOptions,
        memory: Memory | None = None,
    ) -> Tensor:
        """Run the function with the layer's dropout, and store the weights."""
        self._taken.check("forward", options)
        returned = ("output", "weights") if as_flag("need_weights", need_weights) else ("output",)
        arguments: dict[str, Any] = {**own, **options}
        dropout = part(self, "dropout")
        if dropout.training and dropout.p > 0:
            arguments |= {"dropout_p": dropout.p, "seed": drawn_seed()}
        attend = run if memory is None else memory._attend
        result = attend(function, inputs, arguments, returned)
        output: Tensor
        output, weights = result if need_weights else (result, None)
        object.__setattr__(self, "attention_weights", weights)  # no parameter, no submodule
        return output

    def _call(
        self,
        function: str,
        given: tuple[Tensor, Any, Any, Any],
        own: dict[str, Any],
        need_weights: bool,
        options: LayerOptions | HeadsLayerOptions,
    ) -> Tensor:
        """Call the layer. given: queries, keys or a memory, values, valid_lens."""
        queries, keys, values, valid_lens = given
        if is_memory(keys):
            for name, value in (("values", values), ("valid_lens", valid_lens)):
                if value is not None:
                    raise TypeError(
                        f"{name} and a memory are both given: leave out {name}, which the memory "
                        "already contains"
                    )
            keys._check_layer(self)
            queries, parameters = self._projected_queries(queries)
            inputs = {"queries": queries, **parameters}
            return self._attend(function, inputs, own, need_weights, options, keys)
        self._take_sizes(queries, keys, values)
        queries, of_queries = self._projected_queries(queries)
        keys, values, of_keys = self._projected_keys(keys, values)
        inputs = {"queries": queries, "keys": keys, "values": values, **of_queries, **of_keys}
        own["valid_lens"] = valid_lens
        return self._attend(function, inputs, own, need_weights, options)

    def _take_sizes(self, queries: Tensor, keys: Tensor, values: Any) -> None:
        """Take the sizes from the inputs of the first call, if the layer has none."""

    def _projected_queries(self, queries: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the queries for the function, and all parameters except those of keys."""
        return queries, {}

    def _projected_keys(self, keys: Tensor, values: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return keys and values for the function, and the parameters that project them."""
        return keys, values, {}

    def _weights_of_keys(self) -> dict[str, Tensor]:
        """Return the parameters that project keys and values, without an input."""
        return {}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, *rest: Any, **named: Any
    ) -> Any:
        """
        Set the parameters; the error for unexpected biases says how to create the layer.

        Parameters
        ----------
        state_dict : mapping
            Tensors by name.
        strict : bool, optional
            If True, the names must be exactly those of `state_dict()`.
        *rest, **named : optional
            As in torch.nn.Module.load_state_dict.

        Returns
        -------
        keys : NamedTuple
            The missing and the unexpected names.

        Raises
        ------
        RuntimeError
            A shape is wrong or, if `strict`, a name is missing or unexpected.
        """
        try:
            return super().load_state_dict(state_dict, strict, *rest, **named)
        except RuntimeError as error:
            # Only here, because torch does not tell a model's modules whether the call is strict.
            hint = bias_hint(self.state_dict(), state_dict) if strict else ""
            if not hint:
                raise
            raise RuntimeError(str(error).rstrip(". ") + hint) from None

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_script(f"attnext.torch.{type(self).__name__}")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the last weights, since tensors in a graph cannot be copied."""
        return {**self.__dict__, "attention_weights": None}
