"""The constants of cost models, with unit, trade and provenance.

Each constant trades one resource for another. *Provenance* names the machine and the command that measured the value.
Most values are inherited: measured while a kernel was written, on a machine that was not recorded. The command
``python benchmarks/kernels.py --constants`` sweeps all constants but those of convolutions and pooling, and prints the
measured optimum beside the value in this file; ``--constant NAME`` sweeps one. Change a value only with such a
measurement.

The unit *vector FMA* is the time of one fused multiply-add of a vector register in a loop that the arithmetic units
limit: half a cycle on processors with two FMA units.
"""

from __future__ import annotations

# Matrix products.

FMAS_IN_FLIGHT = 8
"""Vector FMAs that a core executes concurrently: two start per cycle, with four cycles of latency.

Trades registers for independent chains of sums where a tile has few sums.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

L2_LOAD_FMAS = 5
"""Vector FMAs in the time of one load of a vector of B from L2.

Trades reads of B for rows of a tile: a tile with fewer rows waits for B.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

SPILL_FMAS = 4
"""Vector FMAs in the time of storing a vector of sums and loading it in another kernel.

Trades fusion of gates for the tile of a separate product.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants` on AVX-512: no other
target compares times.
"""

GATE_FUSION_SLACK = 1.1
"""Ratio of estimated times up to which a product is fused with its gates.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants` on AVX-512: no other
target compares times.
"""

GEMM_TILES_PER_ITEM = 4
"""Register tiles of rows in a work item: more reuse a panel of B longer, fewer balance threads better.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

GEMM_TILES_PER_DEEP_ITEM = 24
"""Most register tiles of rows in a work item if K is blocked.

Trades scratch memory for reuse of a block of B.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

BFLOAT16_PAIR_ROWS = 8
"""Most rows that vectors of pairs of bfloat16 multiply: an instruction takes as long as four FMAs on Sapphire Rapids.
On processors with :attr:`.Target.fast_pairs` there is no such limit.

Provenance: Sapphire Rapids, `SARDONYX_TARGET=avx512bf16 python benchmarks/low_bits.py --sections bf16`.
"""

LOW_BIT_TILES_PER_ITEM = 48
"""Most register tiles of rows in a work item if weights of few bits are converted for each work item.

Trades scratch memory and balance of threads for fewer conversions.
Provenance: Sapphire Rapids, `python benchmarks/low_bits.py`.
"""

DIGIT_ROWS_PER_ITEM = 48
"""Most rows in a work item that multiplies digits of inputs by weights of few bits.

Trades scratch memory and balance of threads for fewer readings of the weights.
Provenance: that of weights which are converted, not remeasured; `python benchmarks/low_bits.py --rows 128 --size 2048`.
"""

DIGITS_SHARE_OF_L2 = 1 / 2
"""Share of L2 that the digits of the rows of a work item take, which all panels of codes are multiplied with.

Trades readings of digits from L3 for readings of the weights.
Provenance: Zen 5 (busy), `python benchmarks/low_bits.py --rows 128 --size 2048`.
"""

LOW_BIT_PREFETCH_BYTES = 8192
"""Distance of prefetches of weights of few bits, into L2: the line fill buffers of L1 are too few for memory's latency.

Provenance: Sapphire Rapids, `python benchmarks/low_bits.py --rows 1`.
"""

LOW_BIT_STEP_OPERATIONS = 5
"""Instructions of a step of K besides the three of each vector of masked codes: the input, its sum, the loop.

Trades wide panels, with padding after the last column, for these instructions.
Provenance: Zen 3, `python benchmarks/low_bits.py --rows 1 --threads 1`.
"""

EXPANDED_SHARE_OF_L2 = 1 / 8
"""Weights of few bits that take a smaller share of L2 as float32 are expanded when a program is compiled.

Trades memory for the conversion in each call.
Provenance: Sapphire Rapids, `python benchmarks/low_bits.py --size 512 --layers 1`.
"""

ROW_TILES_WORTH_PACKING = 2
"""Register tiles of rows up to which B is read in place, or K is not blocked: more amortize the copy.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

STREAM_PREFETCH_BYTES = 4096
"""Prefetch distance of weights that are read once per call.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

STRIDED_PREFETCH_STEPS = 16
"""Prefetch distance, in steps of K, if each row of B is on another page.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

MOST_PREFETCH_LINES = 4
"""Most cache lines of the next panel that one round of the inner loop prefetches.

More lines delay the loads of the round.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

CACHE_LINE = 64
"""Bytes of a cache line of all supported processors. Provenance: architecture manuals."""

FEWEST_ROWS_OF_WEIGHTS = 8
"""Rows of a product with weights from which reading the weights again for other rows takes less time than multiplying.

Provenance: a vector of weights from L2 takes 2 to 3 cycles, a vector FMA half a cycle; not remeasured.
"""

# Convolutions.

BROADCAST_COST = {256: 0.1, 512: 0.3}
"""Cost of broadcasting an input, as a fraction of the FMAs of a tile of one block, by vector bits.

The wider a vector, the fewer FMAs of one cycle overlap with loads.
Provenance: Zen 3 (256) and Cascade Lake (512), `python benchmarks/convolutions.py`.
"""

UNKNOWN_BROADCAST_COST = 0.1
"""The broadcast cost for other vector widths. Provenance: inherited from 256 bits, not measured."""

OUTPUT_LOAD_COST = 0.3
"""Cost of loading a vector of weights, as a fraction of the FMAs of a tile of one output.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

SHORTEST_TILE_FMAS = 10
"""Vector FMAs that a step of a direct tile takes at least: fewer sums wait for the FMA latency.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

LANE_SUM_FMAS = 8
"""Vector FMAs in the time of adding up the lanes of a vector: trades the dot form for the direct form.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

MOST_GROUP_CHANNELS = 8
"""Most channels of a group whose inputs are shuffled; larger groups take the direct form.

The direct form multiplies by zero weights of other groups.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

MOST_PLANES = 4
"""Most planes of an NCHW image in one step, and most channels of an image that stays NCHW.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

MOST_PLANAR_PRODUCTS = 24
"""Most products of a position for which 1x1 convolutions of codes are planar convolutions of floats; Zen 5."""

FEWEST_PLANAR_COLUMNS = 28
"""Fewest known columns for which convolutions of codes of two channels are planar convolutions of floats; Zen 5."""

TYPICAL_WIDTHS = (7, 10, 14, 20, 28, 40, 56, 80)
"""Widths of common networks, for which a tile is chosen if the width is open."""

TYPICAL_IMAGE, TYPICAL_SIZE = 224, 56
"""For open sizes: the rows and columns of an image that Winograd's cost assumes, and the most of a layer.

Sizes of deep layers are quotients of the image's; a layer of few results reads its transformed weights for little work.
"""

MOST_PLANAR_VECTORS = 8
"""Most vectors of outputs of a planar tile: rows are seldom wider.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

BLOCKING_FMAS = 128
"""FMAs of a result that amortize a later conversion of a planar result to blocks.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

# Winograd.

WINOGRAD_MAX_ERROR = 2e-5
"""The largest error bound of Winograd's convolution, relative to the largest result.

Provenance: a requirement, not measured.
"""

WINOGRAD_MAX_COMPUTED_ERROR = 6e-6
"""The same for weights that are computed in the call, as in training, where errors of many steps add up.

Provenance: a requirement, not measured.
"""

WINOGRAD_FRESH_BYTES = 4 << 20
"""Bytes of transformed weights from which kernels transform weights during the call.

Transformed weights are 2 to 7 times as large as the original ones and come from memory. With 256 filters of 256
channels both ways take the same time; with 128 filters of 128 channels transforming ahead is faster.
Provenance: inherited; remeasure with `python benchmarks/winograd.py`.
"""

WINOGRAD_FRESH_FMAS = 16
"""Vector FMAs in the time of transforming a weight during the call, per product of the tile.

Provenance: inherited; remeasure with `python benchmarks/winograd.py`.
"""

WINOGRAD_INPUT_FMAS, WINOGRAD_OUTPUT_FMAS = 7, 4
"""Vector FMAs in the time of transforming an input, and a sum, per product of the tile.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/winograd.py`.
"""

WINOGRAD_BYTE_FMAS = 2
"""Scalar FMAs in the time of reading a byte of transformed weights from memory.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/winograd.py`.
"""

WINOGRAD_PREFETCH_WORDS = 8 << 10
"""Distance of prefetches of integer weights, which are read in the order of memory, in words of 32 bits.

Trades instructions against the latency of memory: a network's weights exceed L2, and tiles multiply each weight soon.
Provenance: Zen 5 (busy), int8 ResNet-18.
"""

INTEGER_QUAD_FMAS, INTEGER_PAIR_FMAS, WINOGRAD_PAIR_FMAS = 2.1, 1.5, 1.7
"""Vector FMAs that take as long as an integer product of all lanes: of four bytes, of two integers of 16 bits in a
direct convolution, and of two in Winograd's.

Trades direct convolutions of integers for transforms, on processors without VNNI.
Provenance: Zen 3 (busy), 3x3 layers of 32 to 512 channels, in both forms by `SARDONYX_SCHEDULE`.
"""

BFLOAT16_PAIR_FMAS = 1.1
"""Vector FMAs that take as long as a product of pairs of bfloat16 of all lanes, in a direct convolution.

Trades direct convolutions of bfloat16 for Winograd's of float32, on processors with :attr:`.Target.fast_pairs`.
Provenance: Zen 5 (busy), `python benchmarks/low_bits.py --sections convolutions`.
"""

BFLOAT16_MOST_BLOCKS = 2
"""Most blocks of output channels of a tile of pairs of bfloat16.

Trades weights loaded once for more outputs against weights of a tile that stay in L2 with the image: 512 filters of 512
channels take 1.00 with 2 blocks, 1.56 with 3 and 1.11 with 4, and no measured layer takes more than 1.03 with 2.
Provenance: Zen 5 (busy), processor times of ten layers of ResNets and MobileNetV2 with each number of blocks.
"""

FEWEST_PAIRED_CHANNELS = 8
"""Fewest channels of a convolution of pairs of bfloat16; fewer fill less than half of a block.

Provenance: Zen 5 (busy), `python benchmarks/low_bits.py --sections convolutions`.
"""

WINOGRAD_STAGE_TILES = 8
"""Tiles per thread below which a kernel of its own transforms all inputs.

Each thread then reads a part of the weights only.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/winograd.py --threads 2`.
"""

WINOGRAD_MOST_ROWS = 16
"""Most Winograd tiles of a register tile.

Provenance: inherited; remeasure with `python benchmarks/winograd.py`.
"""

# Attention.

ATTENTION_KEYS = 512
"""Keys of a block: more keep longer rows of scores in L1, fewer rescale the sums more often.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

ATTENTION_TILES_PER_ITEM = 8
"""Register tiles of queries in a work item.

A block of keys and values is read from beyond L2 once for all tiles.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

QUERIES_WORTH_PACKING = 24
"""Queries from which values are packed.

The copy costs one pass; strided rows use few L1 sets and many pages.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

# Pooling.

POOLING_LINE_ELEMENTS = 4096
"""Elements of the lines of column results of a work item.

More elements reuse rows of the image, fewer stay in L1.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

POOLING_LINE_OUTPUTS = 1024
"""Most elements of a line of column results.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/convolutions.py`.
"""

# Fusion.

RECOMPUTED_OPERATIONS = 6
"""Most operations of a value that is recomputed for each element to which the value is broadcast.

Trades a store, a load and a kernel for repeated arithmetic.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

FEWEST_COMPUTED_TERMS = 16
"""Least known K from which two computed operands of codes are multiplied as bytes, not as floats.

Sums of rows and columns, and packing, take as long for any K. Zen 5.
"""

TABLE_OPERATIONS = 10
"""Operations of a function of codes from which a lookup in a table takes less time.

A requantization, whose division is exact, has 10 to 12. Trades 35 instructions for 32 bytes, and a pass over the codes
in L2, for vectors of floats.
Provenance: Zen 3, `python benchmarks/kernels.py --constant TABLE_OPERATIONS`.
"""

TABLE_BYTES_PER_FMA = 4
"""Bytes that are looked up in the time of a vector FMA: 32 bytes take 35 instructions, with three ports for most.

Trades the size of parts for threads. Provenance: counted, not measured.
"""

REPEATED_OPERATIONS = 3
"""Most operations of a value that each of several readers computes from values that stay in memory anyway.

Trades the memory of the value, a store and a load for repeated arithmetic.
Provenance: a store and a load of 16 floats from L3 take 30 cycles on Zen 4, three additions 3; not remeasured.
"""

DIVISION_OPERATIONS, FUNCTION_OPERATIONS = 4, 12
"""Additions in the time of a division, square root or remainder, and of a function such as `exp`.

Provenance: inherited; 4.4 and, for `tanh`, 21 to 26 on a Xeon with AVX-512 VNNI, `python benchmarks/kernels.py
--constants`.
"""

DYNAMIC_CODE_FMAS = 6
"""Vector FMAs in the time in which a vector of floats is quantized by a computed scale.

Trades the size of parts for threads. Provenance: counted, not measured.
"""

DYNAMIC_INPUT_FMAS = 12
"""Vector FMAs of 16 lanes, or twice as many of 8, in the time in which a vector of floats is quantized by the range of
its tensor: read for the range, read again, written.

Trades convolutions and products of integers for those of floats.
Provenance: Zen 4 (busy), 512-bit and 256-bit vectors, chains of three convolutions of 8 to 256 channels and of 14² to
56² positions, in int8 and in float32.
"""

DYNAMIC_KERNELS_FMAS = 8000
"""Scalar FMAs in the time of the further kernels of a dynamic quantization, on tensors of few elements.

Provenance: Zen 4 (busy), a perceptron of seven products of one row by 64 to 192 columns, in int8 and in float32.
"""

MAP_UNIT_OPERATIONS = 4
"""Additions for an element of a map that count as one element of a work item.

Trades balance between threads for the cost of claiming a work item.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

# Row-by-row kernels. The unit is the addition of a vector.

ROW_CHAINS = 4
"""Vectors of independent partial results of a reduction: hide the latency of an addition, 4 cycles.

Trades registers for independent additions.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

ROW_ADDITIONS = 64
"""Additions to a partial result before the partial results are added to the total.

Trades time for accuracy: the error grows with the length of a run and the number of runs, not with the number of
elements.
Provenance: a bound of the error, not measured.
"""

ROW_ITEM_ELEMENTS = 8192
"""Approximate number of elements of a work item.

Trades balance between threads for the cost of claiming a work item.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

ROW_STORE_OPERATIONS = 8
"""Additions in the time of storing a vector to scratch memory and loading the vector in a later pass.

Trades scratch memory in L1 or L2 for repeated arithmetic.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

ROW_SUM_VECTORS = 8
"""Most vectors of 32 bits of sums of adjacent rows that are reduced at a time.

Trades registers for reads of whole cache lines.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

ROW_SUM_OPERATIONS = 8
"""Most operations for an element that leave registers for several vectors of sums.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

ROW_JUMP_OPERATIONS = 4
"""Additions in the time of going to another cache line, at each step along a row of strided elements.

Orders candidates for `explain`; no decision depends on the value.
Provenance: an assumption, not measured.
"""

# Tree ensembles. The unit is the traversal of a tree by a single row.

TREE_GROUP_ROWS, TREE_SHALLOW_GROUP_ROWS = 18, 3
"""Single rows that take as long as a group of 32 rows; the second if tops lead to leaves only.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

TREE_SHARED_TREES = 512
"""Trees from which threads share the trees of a single row.

Trades a second kernel and a fork for parallel traversals.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants --threads 2`.
"""

TREE_ITEM_TREES = 128
"""Trees of a work item if threads share the trees, a multiple of `TREE_ROW_WAYS`.

Trades balance between threads for the keys of a row, which each work item computes.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants --threads 2`.
"""

TREE_ROW_WAYS, TREE_GROUP_WAYS = 16, 8
"""Concurrent traversals: trees of a single row, and rows of a group in one tree.

Trades registers for independent loads: the trees of a row come from L2 or beyond, the tree of a group is in L1.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

TREE_ROW_STEPS, TREE_GROUP_STEPS = 4, 2
"""Steps between two tests for completion of concurrent traversals.

Trades steps that stay at a leaf for tests and mispredicted branches.
Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""

TREE_PREFETCH_LINES = 32
"""Most cache lines of a tree that a group prefetches: a group reads only a small part of a large tree.

Provenance: inherited, not remeasured; remeasure with `python benchmarks/kernels.py --constants`.
"""
