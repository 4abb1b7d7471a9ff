"""Every cause a finding can name: its slug, what it means, and whether it depends on the tolerance."""

from __future__ import annotations

from enum import Enum


class Cause(str, Enum):
    """Name a cause; the value is the slug in results and reports."""

    description: str
    depends_on_tolerance: bool  # said about what is out of tolerance: at another tolerance it may not hold

    def __new__(cls, slug: str, description: str, depends_on_tolerance: bool = False) -> Cause:
        """Return the cause with its description."""
        cause = str.__new__(cls, slug)
        cause._value_ = slug
        cause.description = description
        cause.depends_on_tolerance = depends_on_tolerance
        return cause

    def __str__(self) -> str:
        return str(self.value)

    # the runs as a whole
    INPUTS_DIFFER = "inputs-differ", "the two models were not given the same inputs", True
    LOSSES_DIFFER = "losses-differ", "the backward passes began with losses of different kinds"
    OUTPUTS_MISSING = "outputs-missing", "only one side returns an output: a cache, hidden states, attentions"
    SHAPES_DIFFER = "shapes-differ", "paired tensors have different shapes: different architectures"
    DTYPES_DIFFER = "dtypes-differ", "values agree, dtypes do not, and --strict-dtype makes that a difference", True
    TRAIN_MODE = "train-mode", "one side ran in train mode, or both ran with dropout", True
    UNSTABLE = "unstable", "a side does not agree with itself from run to run"
    ENVIRONMENT = "environment", "versions or numeric flags differ"
    INNER_ONLY = "inner-only", "modules inside differ, everything that goes in and comes out agrees", True
    # folders
    CONFIG = "config", "settings beside the weights differ: config.json, generation_config.json, tokenizer files"
    # the first divergence
    ROUNDING = "rounding", "every difference is within the noise floor: what rounding alone does", True
    MORE_THAN_ROUNDING = (
        "more-than-rounding",
        "the first divergence is within the noise floor, a later one not",
        True,
    )
    WEIGHTS_DIFFER = "weights-differ", "the first diverging module starts from different weights or buffers", True
    WEIGHTS_SWAPPED = "weights-swapped", "modules hold each other's weights"
    ANOTHER_CLASS = "another-class", "the first diverging module has another class: an activation, a pooling", True
    ATTRIBUTE = "attribute", "the first diverging module has different settings", True
    NORMS_ONLY = "norms-only", "only normalisation layers diverge on their own", True
    EARLY_LAYERS = "early-layers", "the runs part before the first layer with weights: preprocessing", True
    CALLED_OTHERWISE = (
        "called-otherwise",
        "one side calls a layer instead of another, more often, or never",
        True,
    )
    IN_PLACE = "in-place", "one side overwrites in place what it uses again", True
    # modules at fault, proven by experiment
    NORM_EPS = "norm-eps", "a norm adds another eps"
    NORM_EPS_PLACEMENT = "norm-eps-placement", "a norm adds eps at another place: outside the root, or to the deviation"
    NORM_OFFSET = "norm-offset", "a norm multiplies by weight + 1 on one side, by weight on the other"
    NORM_KIND = "norm-kind", "a norm of another kind: with or without the mean, over other axes or groups"
    ACTIVATION = "activation", "another activation, or a variant of it: erf, tanh, quick, silu, relu"
    ATTENTION_SCALE = "attention-scale", "attention scores are multiplied by another factor"
    SOFTCAP = "softcap", "values are capped by tanh on one side only, or at another value"
    CAUSAL_MASK = "causal-mask", "the causal mask is missing, shifted, or on one side only"
    PADDING_MASK = "padding-mask", "the padding mask is ignored or inverted"
    SLIDING_WINDOW = "sliding-window", "attention reaches back another number of positions"
    POSITION_OFFSET = "position-offset", "positions are shifted"
    POSITION_LAYOUT = "position-layout", "position embeddings are computed in another layout: sines first, interleaved"
    KEY_VALUE_GROUPS = "key-value-groups", "key and value heads are tiled instead of repeated"
    ROLES_SWAPPED = "roles-swapped", "two tensors are exchanged: query and key, gate and up"
    ANOTHER_LAYER = "another-layer", "a module holds the weights of another one"
    BIAS_MISSING = "bias-missing", "a bias is not added on one side"
    PREPROCESSING = "preprocessing", "inputs are scaled, shifted or filtered differently"
    RESIDUAL = "residual", "a residual connection is missing, or starts at another place"
    NORM_PLACEMENT = "norm-placement", "norms stand before the layers on one side, after them on the other"
    BLOCK_ORDER = "block-order", "blocks run in another order"
    LAYER_SKIPPED = "layer-skipped", "a layer is skipped, or runs on one side only"
    PADDING = "padding", "a convolution or pooling pads differently"
    STRIDE = "stride", "a convolution or pooling has another stride or starts elsewhere"
    DILATION = "dilation", "a convolution or pooling has another dilation"
    POOLING = "pooling", "pooling of another kind: maximum or mean, padding counted, ceil_mode"
    INTERPOLATION = "interpolation", "images are resized differently: align_corners, mode"
    CONCATENATION = "concatenation", "parts are joined or split in another order"
    MASKED_POSITIONS = "masked-positions", "only padded positions differ", True
    UNDECIDABLE = "undecidable", "the noise floor is as large as the signal: no comparison can tell", True
    CANCELS_OUT = "cancels-out", "layers differ, and what takes their output undoes it", True
    OWN_CODE = "own-code", "the code of a module is at fault; the evidence says what was ruled out"
    # gradients
    LOSS_NOT_FINITE = "loss-not-finite", "the loss is NaN or infinite on both sides: no gradient was compared"
    GRADIENTS_ONLY = "gradients-only", "outputs agree, gradients do not", True
    GRADIENTS_MISSING = "gradients-missing", "one side lacks gradients the other has: frozen, detached, or unused"
    GRADIENTS_SCALED = "gradients-scaled", "every gradient that differs does so by one factor", True
    UNTIED = "untied", "weights are one tensor on one side and several on the other"
    # relations
    PERMUTED = "permuted", "equal once axes are permuted, split or merged"
    RESHAPED = "reshaped", "equal once reshaped: the same elements in the same order"
    BROADCAST = "broadcast", "equal once one side is repeated along an axis"
    FUSED = "fused", "one layer does the work of several on the other side"
    WEIGHT_NORM = "weight-norm", "equal once weight norm is applied"
    FOLDED = "folded", "equal once one layer is folded into another"
    SCALED = "scaled", "equal but for a factor, one for all elements or for each channel"
    SHIFTED = "shifted", "equal once a number is added: zero-centred norms, centred rows"
    QUANTISED = "quantised", "rounded to few levels for each group of elements"
    CAST = "cast", "equal once rounded to the other side's element type"
    VOCAB = "vocab", "equal but for rows that one side has more"
    TIED = "tied", "one tensor under two names"
    MASK = "mask", "a boolean mask and the additive mask of the same places"
    # checkpoints
    RENAMED = "renamed", "the same tensors go by other names"
    TRANSPOSED = "transposed", "equal once the two axes are exchanged: Conv1D against Linear"
    AXES_PERMUTED = "axes-permuted", "equal once the axes are put in another order: OIHW against HWIO"
    ROPE_LAYOUT = "rope-layout", "rows of queries and keys are permuted between interleaved and rotate-half RoPE"
    HEAD_ORDER = "head-order", "blocks of equal size, such as heads or experts, stand in another order"
    CHANNEL_ORDER = "channel-order", "the input channels are reversed: RGB against BGR"
    FLATTEN_ORDER = "flatten-order", "columns follow another order of flattening: channels first against channels last"
    GATE_ORDER = "gate-order", "the gates of a recurrent layer stand in another order"
    HALVES_SWAPPED = "halves-swapped", "the two halves are exchanged: gate and up"
    ROWS_PERMUTED = "rows-permuted", "rows or columns stand in another order, of no known kind"
    LAYER_ORDER = "layer-order", "layers stand in another order, such as that of their numbers read as text"
    LAYERS_SHIFTED = "layers-shifted", "layers are numbered with an offset"
    EXCEPTION = "exception", "most tensors at one place of repeated blocks are related in one way, some are not"
    BATCH_NORM_FOLDED = "batch-norm-folded", "batch norm is folded into the layer before it"
    LORA = "lora", "the difference has a low rank: LoRA merged or stored beside the weights"
    ROPE_THETA = "rope-theta", "the rotary frequencies belong to different values of theta"
    NOT_LOADED = "not-loaded", "one side looks freshly initialised: the tensor was not loaded"
    OPTIMIZER_STEP = "optimizer-step", "the sides are about one step of an optimiser apart"
    COLLAPSED = "collapsed", "one side holds one value alone where the other does not"
    OVERFLOW = "overflow", "one side is infinite where the other is beyond the range of float16"
    STATISTICS_RESET = "statistics-reset", "the running statistics of one side were never updated"
    # training runs
    INITIAL_WEIGHTS = "initial-weights", "the runs start from different weights"
    DATA_ORDER = "data-order", "the runs are given the same samples in another order"
    DATA_SHIFTED = "data-shifted", "the runs are given the same batches some steps apart"
    DATA_DIFFER = "data-differ", "the runs are given different samples, or samples prepared differently"
    LABELS_DIFFER = "labels-differ", "the runs are given the same inputs with different labels"
    BATCH_SIZE = "batch-size", "the batches have different sizes"
    DROPOUT = "dropout", "the forward passes draw different random numbers: dropout, or another seed"
    FORWARD_PASS = "forward-pass", "weights and data of a step are equal, its loss is not"
    BATCH_NORM_MODE = "batch-norm-mode", "one side does not update the running statistics of batch norm"
    BATCH_NORM_MOMENTUM = "batch-norm-momentum", "running statistics of batch norm move by another momentum"
    NOT_FINITE = "not-finite", "one side has NaN or infinity where the other has numbers"
    GRADIENTS_ACCUMULATED = "gradients-accumulated", "gradients hold those of the step before: no `zero_grad`"
    GRADIENTS_CLIPPED = "gradients-clipped", "one side clips its gradients"
    FROZEN = "frozen", "one side does not train some parameters"
    STEP_SKIPPED = "step-skipped", "one side makes no update in a step"
    STATE_LOST = "state-lost", "one side's optimiser starts again without its state"
    LOW_PRECISION = "low-precision", "one side computes, or keeps weights and optimiser state, in a shorter type"
    AVERAGED_WEIGHTS = "averaged-weights", "one side's weights are a moving average (EMA) of the other's"
    ANOTHER_OPTIMIZER = "another-optimizer", "the optimisers are of different classes"
    LEARNING_RATE = "learning-rate", "the learning rates differ, for all or some parameters"
    SCHEDULE = "schedule", "the learning rates follow different schedules"
    WEIGHT_DECAY = "weight-decay", "the weight decay differs, for all or some parameters"
    DECOUPLED_DECAY = "decoupled-decay", "weight decay acts through the gradient on one side only: Adam against AdamW"
    MOMENTUM = "momentum", "the momentum of SGD differs"
    DAMPENING = "dampening", "the dampening of SGD differs"
    NESTEROV = "nesterov", "one side uses Nesterov momentum"
    BETAS = "betas", "the betas of Adam differ"
    OPTIMIZER_EPS = "optimizer-eps", "the eps of the optimisers differs"
    OPTIMIZER_SETTING = "optimizer-setting", "another setting of the optimisers differs"
    UPDATE_RULE = "update-rule", "gradients are equal, updates are not, and no setting explains it"
    REPORTING = "reporting", "a loss or metric is reported differently while the training is the same"
    UNEXPLAINED = "unexplained", "the runs part, and what was kept does not tell why"


LASTING_CAUSES = frozenset(cause.value for cause in Cause if not cause.depends_on_tolerance)
