"""Compile for GPUs that are not there. This is the only module that uses JAX's experimental API.

XLA compiles for a description of a GPU ("target config") and a number of nodes. It needs JAX's CUDA plugin,
and neither a driver nor CUDA's libraries. What differs from a machine with the GPU: the algorithm of each
convolution and matrix product is not chosen by timing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

import jax

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
from jaxperf.plan.cards import CARDS, Card

INSTALL = 'pip install "jax-cuda12-plugin=={version}"'
_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


def check_plugin() -> None:
    """Check that JAX's CUDA plugin is installed.

    Raises:
      JaxperfError: it is not; the message gives the command that installs it.
    """
    if not any(_there(module) for module in _PLUGINS):
        command = INSTALL.format(version=jax.__version__)
        raise JaxperfError(f"planning needs JAX's CUDA plugin, without a GPU; install it: {command}")


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def devices_of(card: Card, count: int) -> list[Any]:
    """Return descriptions of `count` GPUs, in full nodes and with one process per GPU.

    Raises:
      JaxperfError: no plugin, or a count that does not fill its nodes.
    """
    check_plugin()
    nodes, in_node = nodes_of(card, count)
    get_topology = jax_internals.get(jax_internals.TOPOLOGY)
    try:
        return list(
            get_topology(
                platform="cuda",
                target_config=card.target or target_config(card),
                topology=f"{nodes}x{in_node}x1",
            ).devices
        )
    except Exception as e:
        lines = str(e).strip().splitlines() or ["no message"]
        raise JaxperfError(
            f"JAX {jax.__version__} cannot describe {count} x {card.name}: {lines[0][:200]}; "
            f"install the plugin of the same version: {INSTALL.format(version=jax.__version__)}"
        ) from None


def card_of_this_machine() -> Card:
    """Return the GPU that is here as a card, with the target that XLA reports for it.

    Raises:
      JaxperfError: no GPU is here, or one that is in no table.
    """
    try:
        kind = jax.devices("cuda")[0].device_kind
    except RuntimeError:
        raise JaxperfError("no GPU is here for --for this; name a card, --for h100") from None
    if not (card := next((card for card in CARDS.values() if card.name.upper() in kind.upper()), None)):
        raise JaxperfError(f"{kind} is in no table; name the nearest card, --for {' or '.join(CARDS)}")
    return dataclasses.replace(card, target=_target(jax.devices("cuda")))


def _target(devices: list[Any]) -> str:
    """Return XLA's description of the GPUs that are here; "" where this JAX does not give it."""
    topology_for = jax_internals.loaded(jax_internals.DEVICE_TOPOLOGY)
    return str(getattr(topology_for and topology_for(devices), "target_config", ""))


def nodes_of(card: Card, count: int) -> tuple[int, int]:
    """Return how many nodes `count` cards take, and how many cards are in each.

    Raises:
      JaxperfError: the count is not positive or does not fill its nodes.
    """
    if count < 1:
        raise JaxperfError(f"{count} devices are none; give numbers from 1 on, --devices 1,8,64")
    if count > card.per_node and count % card.per_node:
        low = count // card.per_node * card.per_node
        raise JaxperfError(
            f"{count} devices do not fill nodes of {card.per_node}; take {low} or {low + card.per_node}"
        )
    return max(1, count // card.per_node), min(count, card.per_node)


def compile_for(lowered: Any) -> Any:
    """Compile a lowered program; XLA's own errors become one line.

    LLVM optimizes nothing: kernels and their order stay the same, and compiling takes two thirds of the time.
    """
    try:
        return lowered.compile(compiler_options={"xla_backend_optimization_level": 0})
    except JaxperfError:
        raise
    except Exception as e:
        lines = str(e).strip().splitlines() or ["no message"]
        raise JaxperfError(f"XLA cannot compile this step without a GPU: {lines[0][:300]}") from None


def target_config(card: Card) -> str:
    """Return XLA's description of a card, as the text of its `GpuTargetConfigProto`."""
    major, minor = card.capability
    accelerated = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {card.shared_bytes}
  shared_memory_per_block_optin: {card.shared_bytes - 1024}
  threads_per_core_limit: 2048
  core_count: {card.cores}
  fpus_per_core: {card.fp32_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: {card.memory_bandwidth:.0f}
  l2_cache_size: {card.l2_bytes}
  clock_rate_ghz: {card.clock_ghz}
  device_memory_size: {card.memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} {accelerated} }}
  device_interconnect_info {{ active_links: {card.links} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability {major}.{minor}"
  device_address_bits: 64
  pcie_bandwidth: {card.pcie_bandwidth:.0f}
  ecc_enabled: true
  name: "{card.title}"
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{card.title}"
"""


def dump(lowered: Any, folder: str, options: Mapping[str, Any]) -> None:
    """Compile a program so that XLA writes its PTX into a folder, without the options that XLA lacks."""
    wanted: dict[str, Any] = {"xla_dump_to": folder, **options}
    while True:
        try:
            lowered.compile(compiler_options=wanted)
            return
        except Exception as e:
            unknown = next((name for name in options if name in wanted and name in str(e)), None)
            if unknown is None:
                raise
            del wanted[unknown]
