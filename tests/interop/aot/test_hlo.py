"""Collectives that are read from the text of a program, on lines that XLA wrote."""

from jaxsr.interop.aot.hlo import Collective, collectives

ASYNCHRONOUS = """
  %reduce-scatter-start = ((bf16[8,64,64]{2,1,0}), bf16[1,64,64]{2,1,0}) \
reduce-scatter-start(%fusion), channel_id=65, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %reduce-scatter-start.3 = ((bf16[4096]{0}, f32[16,8]{1,0}), (bf16[512]{0}, f32[2,8]{1,0})) \
reduce-scatter-start(%a, %b), channel_id=68, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %reduce-scatter = f32[2,8]{1,0} reduce-scatter(%c), replica_groups={{0,1,2,3,4,5,6,7}}
"""


def test_inputs_of_an_asynchronous_reduce_scatter_count_once():
    assert collectives(ASYNCHRONOUS) == [
        Collective("reduce-scatter", 8 * 64 * 64 * 2, ("bf16",), 8),
        Collective("reduce-scatter", 4096 * 2 + 16 * 8 * 4, ("bf16", "f32"), 8),
        Collective("reduce-scatter", 16 * 8 * 4, ("f32",), 8),
    ]
