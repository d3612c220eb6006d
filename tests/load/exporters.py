"""A small Llama whose matrices other people's code quantizes, and what that code says that they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.load import folder

torch = pytest.importorskip("torch")

HIDDEN, INNER, VOCAB, HEADS, LAYERS = 128, 192, 320, 4, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "torch_dtype": "float16",
    "eos_token_id": 257,
    "bos_token_id": 256,
}
Meant = tuple[dict[str, Any], Any]
"""Tensors by the ends of their names, and the matrix that they mean, in the type of its scales."""


class Export(NamedTuple):
    """`quantize` makes tensors of a matrix [out, in]; `config` is what config.json says of it."""

    config: dict[str, Any]
    quantize: Callable[[Any], Meant]


def linear(weight: Any) -> Any:
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    module.weight.data = weight.clone()
    return module


def scales_and_zeros(weight: Any, group: int, bits: int, is_symmetric: bool) -> tuple[Any, Any]:
    """[out, groups]; zeros are at least 1, for the first GPTQ has no 0"""
    groups = weight.reshape(weight.shape[0], -1, group)
    if is_symmetric:
        scales = (groups.abs().amax(-1) / (2 ** (bits - 1) - 0.5)).half().float()
        return scales, torch.full_like(scales, 2 ** (bits - 1))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / (2**bits - 1)).half().float()
    return scales, (-low / scales).round().clamp(1, 2**bits - 1)


def awq(group: int) -> Export:
    from auto_round.export.export_to_awq.utils import WQLinear_GEMM, dequantize_gemm

    def quantize(weight: Any) -> Meant:
        scales, zeros = scales_and_zeros(weight, group, 4, False)
        packed = WQLinear_GEMM.from_linear(linear(weight), 4, group, scales=scales.t().contiguous(), zeros=zeros.t())
        tensors = {name: getattr(packed, name).contiguous() for name in ("qweight", "qzeros", "scales")}
        return tensors, dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, group).t()

    told = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Export(told, quantize)


def gptq(bits: int, group: int, is_symmetric: bool = True, reorders: bool = False) -> Export:
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

    def quantize(weight: Any) -> Meant:
        length = weight.shape[1] if group == -1 else group
        scales, zeros = scales_and_zeros(weight, length, bits, is_symmetric)
        packed = QuantLinear(bits, group, weight.shape[1], weight.shape[0], bias=False)
        packed.pack(linear(weight), scales, zeros)
        tensors = {name: getattr(packed, name).contiguous() for name in ("qweight", "qzeros", "scales")}
        in_order = torch.arange(weight.shape[1], dtype=torch.int32) // length
        meant = packed(torch.eye(weight.shape[1])).t()
        if not reorders:
            return {**tensors, "g_idx": in_order}, meant.half()
        order = in_order[torch.randperm(len(in_order), generator=torch.Generator().manual_seed(2))]
        codes = (meant / scales[:, in_order]).round() + zeros[:, in_order]
        return {**tensors, "g_idx": order}, (scales[:, order] * (codes - zeros[:, order])).half()

    told = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": reorders, "sym": is_symmetric}
    return Export({**told, "checkpoint_format": "gptq"}, quantize)


def compressed(form: str, dtype: Any = None, **arguments: Any) -> Export:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    dtype = dtype or torch.bfloat16
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(form)

    def quantize(weight: Any) -> Meant:
        low, high = extremes(weight, args)
        scale, zero = calculate_qparams(low.to(dtype), high.to(dtype), args)
        state = {"weight": weight.to(dtype), "weight_scale": scale.to(dtype)}
        if not args.symmetric:
            state["weight_zero_point"] = zero
        packed = compressor.compress(state, scheme)
        meant = compressor.decompress(packed, scheme)["weight"]
        return {name: tensor.contiguous() for name, tensor in packed.items()}, meant

    weights = args.model_dump(mode="json", exclude_none=True)
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    told = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}
    return Export({**told, "quantization_status": "compressed"}, quantize)


def extremes(weight: Any, args: Any) -> tuple[Any, Any]:
    """Of what shares a scale."""
    if args.strategy == "group":
        pieces = weight.reshape(weight.shape[0], -1, args.group_size)
        return pieces.amin(-1), pieces.amax(-1)
    if args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if args.strategy == "block":
        rows, columns = args.block_structure
        pieces = weight.reshape(weight.shape[0] // rows, rows, weight.shape[1] // columns, columns)
        return pieces.amin((1, 3)), pieces.amax((1, 3))
    return weight.amin().reshape(1), weight.amax().reshape(1)


def fp8(block: tuple[int, int] | None) -> Export:
    """By the format's own page: number × scale, one scale for all or for each block."""

    def quantize(weight: Any) -> Meant:
        if block is None:
            scale = weight.abs().max() / 448
            packed = (weight / scale).to(torch.float8_e4m3fn)
            return {"weight": packed, "weight_scale": scale, "input_scale": scale * 2}, packed.float() * scale
        rows, columns = (torch.arange(size) // length for size, length in zip(weight.shape, block, strict=True))
        scale = torch.rand(int(rows[-1]) + 1, int(columns[-1]) + 1, generator=torch.Generator().manual_seed(1)) + 0.01
        spread = scale[rows][:, columns]
        packed = (weight / spread).to(torch.float8_e4m3fn)
        return {"weight": packed, "weight_scale_inv": scale}, packed.float() * spread

    told = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    return Export(told if block is None else {**told, "weight_block_size": list(block)}, quantize)


def weights() -> dict[str, Any]:
    """The model in float32."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Any:
        return torch.randn(shape, generator=generator) * 1.5 / shape[-1] ** 0.5

    found = {"model.embed_tokens.weight": draw(VOCAB, HIDDEN) * 8, "model.norm.weight": torch.ones(HIDDEN)}
    found["lm_head.weight"] = draw(VOCAB, HIDDEN) * 3
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found |= {f"{at}.{name}_layernorm.weight": torch.ones(HIDDEN) for name in ("input", "post_attention")}
        found |= {f"{at}.self_attn.{name}_proj.weight": draw(HIDDEN, HIDDEN) for name in "qo"}
        found |= {f"{at}.self_attn.{name}_proj.weight": draw(HIDDEN // 2, HIDDEN) for name in "kv"}
        found |= {f"{at}.mlp.{name}_proj.weight": draw(INNER, HIDDEN) for name in ("gate", "up")}
        found[f"{at}.mlp.down_proj.weight"] = draw(HIDDEN, INNER)
    return found


def write(path: Path, export: Export, left_out: str = "lm_head") -> dict[str, Any]:
    """Writes the model with its projections quantized but for those of a name; what each of its tensors means."""
    from safetensors.torch import save_file

    tensors, meant = {}, {}
    for name, weight in weights().items():
        if "_proj" in name and left_out not in name:
            parts, meant[name] = export.quantize(weight)
            tensors |= {f"{name.removesuffix('weight')}{end}": part for end, part in parts.items()}
        else:
            tensors[name] = meant[name] = weight.half()
    folder.write(path, config__json={**CONFIG, "quantization_config": export.config}, model__safetensors=None)
    save_file(tensors, path / "model.safetensors")
    return meant


EXPORTS: dict[str, Callable[[], Export]] = {
    "awq": lambda: awq(64),
    "awq in groups of 16": lambda: awq(16),
    "gptq": lambda: gptq(4, 64),
    "gptq, asymmetric": lambda: gptq(4, 32, is_symmetric=False),
    "gptq of 8 bits": lambda: gptq(8, 64),
    "gptq of 8 bits, asymmetric, by rows": lambda: gptq(8, -1, is_symmetric=False),
    "gptq in another order": lambda: gptq(4, 32, is_symmetric=False, reorders=True),
    "packed int4": lambda: compressed("pack-quantized", num_bits=4, strategy="group", group_size=64),
    "packed int4 with zeros": lambda: compressed(
        "pack-quantized", torch.float16, num_bits=4, strategy="group", group_size=32, symmetric=False
    ),
    "packed int4 by rows": lambda: compressed("pack-quantized", num_bits=4, strategy="channel", symmetric=False),
    "packed int8 by rows": lambda: compressed("pack-quantized", num_bits=8, strategy="channel"),
    "packed int8 with zeros": lambda: compressed(
        "pack-quantized", num_bits=8, strategy="group", group_size=64, symmetric=False
    ),
    "packed int8 as one": lambda: compressed("pack-quantized", num_bits=8, strategy="tensor"),
    "int8 by rows": lambda: compressed("int-quantized", torch.float32, num_bits=8, strategy="channel"),
    "int8 with zeros": lambda: compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
    "float8 by rows": lambda: compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
    "float8 as one": lambda: compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
    "float8 in blocks": lambda: compressed(
        "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[64, 32]
    ),
    "fp8": lambda: fp8(None),
    "fp8 in blocks": lambda: fp8((48, 80)),
}


@functools.cache
def export_of(name: str) -> Export:
    return EXPORTS[name]()
