"""Hold the memory of plans against published facts: `python benchmarks/plan/memory.py [NAME...]`.

Each row is a training step of which a source says what it takes, or that it does not fit, written as the
source describes it. The result is memory.csv. It needs JAX's CUDA plugin; a row takes 30 s.
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from published import FLAGS, LLAMA, MAXTEXT, Step, make

FOLDER = Path(__file__).parent
GIB = 2**30
HEADS = "step card card_gb devices published published_gb planned_gb fits right framework source note"


@dataclass(frozen=True)
class Fact:
    """A step, the memory of its card in bytes, whether it fits, and the bytes that it takes, if published."""

    step: Step
    memory: float
    fits: bool
    taken: float = 0.0
    note: str = ""


LLAMA_7B: dict[str, Any] = {
    "layers": 32, "width": 4096, "heads": 32, "inner": 11008, "gated": True, "vocabulary": 32000,
    "untied": True, "framework": "PyTorch",
}  # fmt: skip
LLAMA_13B: dict[str, Any] = LLAMA_7B | {"layers": 40, "width": 5120, "heads": 40, "inner": 13824}
LLAMA_8B: dict[str, Any] = LLAMA_7B | {
    "kv_heads": 8, "inner": 14336, "vocabulary": 128256, "length": 8192, "examples": 2, "remat": "dots",
}  # fmt: skip
MPT: dict[str, Any] = {"length": 2048, "vocabulary": 50368, "framework": "PyTorch"}
MPT_7B: dict[str, Any] = MPT | {"layers": 32, "width": 4096, "heads": 32, "inner": 16384, "examples": 6}
MPT_1B: dict[str, Any] = MPT | {"layers": 24, "width": 2048, "heads": 16, "inner": 8192, "examples": 14}
NANOCHAT: dict[str, Any] = {
    "layers": 32, "width": 2048, "heads": 16, "inner": 8192, "length": 2048, "vocabulary": 65536,
    "untied": True, "sharded": False, "moments_sharded": True, "framework": "PyTorch",
    "source": "karpathy/nanochat, run1000.sh",
}  # fmt: skip
QWEN_32B: dict[str, Any] = {
    "layers": 64, "width": 5120, "heads": 40, "kv_heads": 8, "inner": 27648, "gated": True,
    "vocabulary": 152064, "untied": True, "examples": 1, "remat": "nothing", "framework": "PyTorch",
    "source": "huggingface/open-r1, recipes/OlympicCoder-32B, and issue 579",
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "gated": True, "vocabulary": 151936, "head": 128, "heads": 32, "examples": 1, "remat": "nothing",
    "eager_loss": True, "framework": "PyTorch",
    "source": "PrimeIntellect-ai/prime-rl, benchmarks/results/BENCHMARKS.md, January 2026, SFT Full",
}  # fmt: skip
QWEN3_4B: dict[str, Any] = QWEN3 | {"layers": 36, "width": 2560, "kv_heads": 8, "inner": 9728}
QWEN3_30B: dict[str, Any] = QWEN3 | {
    "layers": 48, "width": 2048, "kv_heads": 4, "inner": 768, "experts": 128, "chosen": 8, "untied": True,
}  # fmt: skip
ALPACA = "tatsu-lab/stanford_alpaca, issues 56 and 189"
FOUNDRY = "mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
TITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, with torch.compile"
TITAN_H200 = "pytorch/torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
LORA = "Lightning-AI/litgpt, tutorials/resource-tables.md"
A100_40, A100, H100, H100_96, H200, B200 = 42.4e9, 85.1e9, 84.9e9, 101.9e9, 151.4e9, 191.5e9
LOGITS = "length: of the workflow of 13 January 2026; the allocation that failed, 37.09 GiB, is its logits"
SELECTIVE = "selective checkpointing as a policy that saves matrix products"


def lora(name: str, model: dict[str, Any], examples: int) -> Step:
    """Return LitGPT's fine-tuning with adapters of rank 8, at the length of the longest example."""
    return Step(
        name, "a100", 1, 0.0, examples=examples, length=1304, lora=8, source=LORA, sharded=False, **model
    )


FACTS = (
    Fact(Step("LLaMA 7B, all weights", "a100", 1, 0.0, examples=1, length=512, fused=False, source=ALPACA,
              **LLAMA_7B), A100, False),
    Fact(Step("LLaMA 7B, all weights", "a100", 2, 0.0, examples=1, length=512, fused=False, source=ALPACA,
              **LLAMA_7B), A100, True),
    Fact(Step("MPT 7B", "a100", 8, 0.0, source=FOUNDRY, **MPT_7B), A100, True),
    Fact(Step("MPT 7B", "h100", 8, 0.0, source=FOUNDRY, **MPT_7B), H100, True),
    Fact(Step("MPT 1B", "h100", 8, 0.0, source=FOUNDRY, **MPT_1B), H100, True),
    Fact(Step("Llama 7B", "h100", 8, 0.0, examples=2, length=4096,
              source="facebookresearch/lingua, issue 56, apps/main/configs/llama_7B.yaml",
              **LLAMA_7B | {"vocabulary": 128256}), H100, True, 0.8 * H100),
    Fact(Step("Llama-3.1 8B", "h100", 8, 0.0, source=TITAN, **LLAMA_8B), H100_96, True, 77.0 * GIB,
         SELECTIVE),
    Fact(Step("Llama-3.1 8B", "h100", 128, 0.0, source=TITAN, **LLAMA_8B), H100_96, True, 62.0 * GIB,
         SELECTIVE),
    Fact(Step("Llama-3.1 8B", "h200", 32, 0.0, source=TITAN_H200, **LLAMA_8B), H200, True, 47.96 * GIB,
         f"{SELECTIVE}; published with float8"),
    Fact(Step("Llama-2 70B", "h100", 64, 0.0, length=4096, vocabulary=32000, source=MAXTEXT, **LLAMA), H100,
         True),
    Fact(Step("Llama-3 70B", "h100", 128, 0.0, length=8192, vocabulary=128256, source=MAXTEXT, **LLAMA), H100,
         True),
    Fact(Step("nanochat, 32 layers, 8 examples", "h100", 8, 0.0, examples=8, **NANOCHAT), H100, True,
         78 * GIB, "Adam's second moment in place of Muon's work space; published: the whole card"),
    Fact(Step("nanochat, 32 layers, 16 examples", "h100", 8, 0.0, examples=16, **NANOCHAT), H100, False),
    Fact(Step("Qwen-2.5 32B, 22,528 tokens", "h100", 128, 0.0, length=22528, **QWEN_32B), H100, True),
    Fact(Step("Qwen-2.5 32B, 32,768 tokens", "h100", 128, 0.0, length=32768, **QWEN_32B), H100, False),
    Fact(Step("Qwen3 4B, 16,384 tokens", "h100", 8, 0.0, length=16384, **QWEN3_4B), H100, True, 54.63 * GIB),
    Fact(Step("Qwen3 4B, 65,536 tokens", "h100", 8, 0.0, length=65536, **QWEN3_4B), H100, False, 0, LOGITS),
    Fact(Step("Qwen3 4B, 16,384 tokens", "h200", 8, 0.0, length=16384, **QWEN3_4B), H200, True, 54.63 * GIB),
    Fact(Step("Qwen3 4B, 65,536 tokens", "h200", 8, 0.0, length=65536, **QWEN3_4B), H200, False, 0, LOGITS),
    Fact(Step("Qwen3 4B, 65,536 tokens", "b200", 8, 0.0, length=65536, **QWEN3_4B), B200, True, 171.53 * GIB),
    Fact(Step("Qwen3 30B-A3B, 16,384 tokens", "h200", 8, 0.0, length=16384, **QWEN3_30B), H200, True,
         106.4 * GIB),
    Fact(Step("Qwen3 30B-A3B, 65,536 tokens", "h200", 8, 0.0, length=65536, **QWEN3_30B), H200, False, 0,
         LOGITS),
    Fact(Step("Qwen3 30B-A3B, 65,536 tokens", "b200", 8, 0.0, length=65536, **QWEN3_30B), B200, False, 0,
         LOGITS),
    Fact(lora("Llama-2 7B, LoRA, 1 example", LLAMA_7B, 1), A100_40, True, 21.30e9),
    Fact(lora("Llama-2 7B, LoRA, 2 examples", LLAMA_7B, 2), A100_40, True, 29.07e9),
    Fact(lora("Llama-2 7B, LoRA, 4 examples", LLAMA_7B, 4), A100_40, False),
    Fact(lora("Llama-2 13B, LoRA, 1 example", LLAMA_13B, 1), A100_40, True, 38.12e9),
    Fact(lora("Llama-2 13B, LoRA, 2 examples", LLAMA_13B, 2), A100_40, False),
)  # fmt: skip


def main(names: list[str]) -> None:
    """Plan the steps whose names are given, or all, and write memory.csv."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    from jaxperf.plan.memory import USABLE
    from jaxperf.plan.planning import plan

    rows = []
    for fact in FACTS:
        step = fact.step
        if names and not any(name in f"{step.name} {step.devices} {step.card}" for name in names):
            continue
        (size,) = plan(make(step), device=step.card, devices=(step.devices,), batch=(4,)).sizes
        fits = size.peak_bytes <= USABLE * fact.memory
        words = {True: "fits", False: "does not fit"}
        taken = f"{fact.taken / 1e9:.1f}" if fact.taken else ""
        right = "yes" if fits == fact.fits else "no"
        rows.append(
            [step.name, step.card, f"{fact.memory / 1e9:.1f}", step.devices, words[fact.fits], taken,
             f"{size.peak_bytes / 1e9:.1f}", words[fits], right, step.framework, step.source, fact.note]
        )  # fmt: skip
        print(*rows[-1][:9], flush=True)
    if not names:
        with (FOLDER / "memory.csv").open("w", encoding="utf-8", newline="") as file:
            file.write(
                "# Written by memory.py: whether steps fit, and GB of each device, published and planned.\n"
            )
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEADS.split())
            writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
