/* The kernels of the emulated accelerator: what forward and backward of a Dense stack need.
 *
 * Which arguments lie in host memory, and which types a kernel takes, follow TensorFlow's own CUDA kernels,
 * so that placement and hidden copies are like there. Element-wise work is done in double and rounded once.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"
#include "tensorflow/c/kernels.h"

#define MAX_RANK 8
#define MAX_VIEW_RANK (2 * MAX_RANK) /* Tile views each axis as two */

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- Calls: a kernel's inputs, outputs and attributes ---- */

typedef struct Tensor {
  TF_Tensor *handle;
  TF_DataType type;
  int rank;
  int64_t dims[MAX_RANK];
  int64_t count;
  size_t element_size;
  char *data;
  bool wrong; /* an output of an operation that is to compute a wrong result */
} Tensor;

/* The attributes of all kernels here; those that an operation doesn't have stay zero. */
typedef struct Attributes {
  TF_Bool transpose_a, transpose_b;
  TF_Bool keep_dims;
  TF_Bool channels_first;
  int64_t axis, batch_dims;
  int64_t begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask;
} Attributes;

typedef struct Call {
  TF_OpKernelContext *context;
  TF_Status *status;
  const Attributes *attributes;
  bool wrong;
  int num_inputs;
  Tensor *inputs;
} Call;

typedef void (*Body)(Call *call);

static void fail(Call *call, TF_Code code, const char *message) {
  if (TF_GetCode(call->status) == TF_OK) TF_SetStatus(call->status, code, message);
}

static bool failed(const Call *call) { return TF_GetCode(call->status) != TF_OK; }

static int64_t product(const int64_t *dims, int rank) {
  int64_t result = 1;
  for (int axis = 0; axis < rank; axis++) result *= dims[axis];
  return result;
}

static void describe(Call *call, TF_Tensor *handle, Tensor *tensor) {
  tensor->handle = handle;
  tensor->type = TF_TensorType(handle);
  tensor->rank = TF_NumDims(handle);
  tensor->element_size = TF_DataTypeSize(tensor->type);
  tensor->data = TF_TensorData(handle);
  if (tensor->rank > MAX_RANK) {
    fail(call, TF_UNIMPLEMENTED, "the emulated device takes at most 8 dimensions.");
    return;
  }
  for (int axis = 0; axis < tensor->rank; axis++) tensor->dims[axis] = TF_Dim(handle, axis);
  tensor->count = product(tensor->dims, tensor->rank);
}

/* Allocates an output, which the caller gives back with `close_output` unless the call has failed. */
static Tensor open_output(Call *call, int index, TF_DataType type, int rank, const int64_t *dims) {
  Tensor tensor = {0};
  if (rank > MAX_RANK) fail(call, TF_UNIMPLEMENTED, "the emulated device makes at most 8 dimensions.");
  if (failed(call)) return tensor;
  size_t bytes = (size_t)product(dims, rank) * TF_DataTypeSize(type);
  TF_Tensor *handle = TF_AllocateOutput(call->context, index, type, dims, rank, bytes, call->status);
  if (!failed(call)) describe(call, handle, &tensor);
  tensor.wrong = call->wrong;
  return tensor;
}

/* Makes every second element 5 % larger: wrong, but finite and of the right order. */
static void spoil(Tensor *tensor) {
  for (int64_t i = 0; i < tensor->count; i += 2) {
    if (tensor->type == TF_FLOAT) ((float *)tensor->data)[i] *= 1.05f;
    if (tensor->type == TF_DOUBLE) ((double *)tensor->data)[i] *= 1.05;
  }
}

static void close_output(Tensor *tensor) {
  if (tensor->wrong) spoil(tensor);
  TF_DeleteTensor(tensor->handle);
}

static void run(void *attributes, TF_OpKernelContext *context, Body body, const char *operation) {
  Call call = {.context = context,
               .status = TF_NewStatus(),
               .attributes = attributes,
               .wrong = is_wrong(operation)};
  SP_Stream stream = TF_GetStream(context, call.status);
  if (!failed(&call)) atomic_fetch_add(&stream->device->counters.kernel_runs, 1);
  call.num_inputs = TF_NumInputs(context);
  call.inputs = calloc((size_t)call.num_inputs + 1, sizeof *call.inputs);
  for (int i = 0; i < call.num_inputs && !failed(&call); i++) {
    TF_Tensor *handle = NULL;
    TF_GetInput(context, i, &handle, call.status);
    if (!failed(&call)) describe(&call, handle, &call.inputs[i]);
  }
  if (!failed(&call)) body(&call);
  for (int i = 0; i < call.num_inputs; i++) {
    if (call.inputs[i].handle) TF_DeleteTensor(call.inputs[i].handle);
  }
  free(call.inputs);
  if (failed(&call)) TF_OpKernelContext_Failure(context, call.status);
  TF_DeleteStatus(call.status);
}

/* Defines compute_NAME, which TensorFlow calls, around a body that follows the macro. */
#define KERNEL(name)                                                    \
  static void body_##name(Call *call);                                  \
  static void compute_##name(void *instance, TF_OpKernelContext *ctx) { \
    run(instance, ctx, body_##name, #name);                             \
  }                                                                     \
  static void body_##name(Call *call)

static bool has_attribute(TF_OpKernelConstruction *construction, const char *name, TF_Status *status) {
  return TF_OpKernelConstruction_HasAttr(construction, name, status) && TF_GetCode(status) == TF_OK;
}

static void *create_instance(TF_OpKernelConstruction *construction) {
  Attributes *attributes = calloc(1, sizeof *attributes);
  TF_Status *status = TF_NewStatus();
  struct {
    const char *name;
    TF_Bool *value;
  } flags[] = {
      {"transpose_a", &attributes->transpose_a},
      {"transpose_b", &attributes->transpose_b},
      {"keep_dims", &attributes->keep_dims},
  };
  for (size_t i = 0; i < LENGTH(flags); i++) {
    if (!has_attribute(construction, flags[i].name, status)) continue;
    TF_OpKernelConstruction_GetAttrBool(construction, flags[i].name, flags[i].value, status);
  }
  struct {
    const char *name;
    int64_t *value;
  } integers[] = {
      {"axis", &attributes->axis},
      {"batch_dims", &attributes->batch_dims},
      {"begin_mask", &attributes->begin_mask},
      {"end_mask", &attributes->end_mask},
      {"ellipsis_mask", &attributes->ellipsis_mask},
      {"new_axis_mask", &attributes->new_axis_mask},
      {"shrink_axis_mask", &attributes->shrink_axis_mask},
  };
  for (size_t i = 0; i < LENGTH(integers); i++) {
    if (!has_attribute(construction, integers[i].name, status)) continue;
    TF_OpKernelConstruction_GetAttrInt64(construction, integers[i].name, integers[i].value, status);
  }
  if (has_attribute(construction, "data_format", status)) {
    char format[8] = "";
    TF_OpKernelConstruction_GetAttrString(construction, "data_format", format, sizeof format - 1, status);
    attributes->channels_first = strncmp(format, "NC", 2) == 0;
  }
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  TF_DeleteStatus(status);
  return attributes;
}

static void delete_instance(void *instance) { free(instance); }

/* ---- Elements ---- */

static inline double load(const Tensor *tensor, int64_t i) {
  switch (tensor->type) {
    case TF_FLOAT: return ((const float *)tensor->data)[i];
    case TF_DOUBLE: return ((const double *)tensor->data)[i];
    case TF_INT32: return ((const int32_t *)tensor->data)[i];
    case TF_INT64: return (double)((const int64_t *)tensor->data)[i];
    case TF_BOOL: return ((const bool *)tensor->data)[i];
    default: return NAN;
  }
}

static inline void store(const Tensor *tensor, int64_t i, double value) {
  switch (tensor->type) {
    case TF_FLOAT: ((float *)tensor->data)[i] = (float)value; break;
    case TF_DOUBLE: ((double *)tensor->data)[i] = value; break;
    case TF_INT32: ((int32_t *)tensor->data)[i] = (int32_t)value; break;
    case TF_INT64: ((int64_t *)tensor->data)[i] = (int64_t)value; break;
    case TF_BOOL: ((bool *)tensor->data)[i] = value != 0; break;
    default: break;
  }
}

static int64_t load_integer(const Tensor *tensor, int64_t i) {
  return tensor->type == TF_INT64 ? ((const int64_t *)tensor->data)[i] : ((const int32_t *)tensor->data)[i];
}

/* Reads an axis, which may count from the end; fails if it isn't below `rank`. */
static int read_axis(Call *call, int64_t axis, int rank) {
  if (axis < 0) axis += rank;
  if (axis >= 0 && axis < rank) return (int)axis;
  fail(call, TF_INVALID_ARGUMENT, "axis out of range.");
  return 0;
}

/* ---- Walks: the positions of a shape in row-major order, with the offsets of two strided operands ---- */

typedef struct Walk {
  int rank;
  const int64_t *dims;
  int64_t index[MAX_VIEW_RANK];
  int64_t strides[2][MAX_VIEW_RANK];
  int64_t offsets[2];
} Walk;

static void row_major_strides(const int64_t *dims, int rank, int64_t *strides) {
  int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; axis--) {
    strides[axis] = stride;
    stride *= dims[axis];
  }
}

/* Strides with which `tensor` is read as if it had been broadcast to a shape of the given rank. */
static void broadcast_strides(const Tensor *tensor, int rank, int64_t *strides) {
  int64_t own[MAX_RANK];
  row_major_strides(tensor->dims, tensor->rank, own);
  for (int axis = 0; axis < rank; axis++) {
    int own_axis = axis - (rank - tensor->rank);
    strides[axis] = own_axis < 0 || tensor->dims[own_axis] == 1 ? 0 : own[own_axis];
  }
}

static inline void walk_on(Walk *walk) {
  for (int axis = walk->rank - 1; axis >= 0; axis--) {
    walk->offsets[0] += walk->strides[0][axis];
    walk->offsets[1] += walk->strides[1][axis];
    if (++walk->index[axis] < walk->dims[axis]) return;
    walk->offsets[0] -= walk->strides[0][axis] * walk->dims[axis];
    walk->offsets[1] -= walk->strides[1][axis] * walk->dims[axis];
    walk->index[axis] = 0;
  }
}

/* Copies the elements of a strided view of `source` to `target` in row-major order. */
static void copy_view(const Tensor *target, const Tensor *source, int rank, const int64_t *dims,
                      const int64_t *strides, int64_t start) {
  int64_t count = product(dims, rank);
  size_t size = target->element_size;
  /* A dense last axis is copied in one piece. */
  int64_t run_length = rank > 0 && strides[rank - 1] == 1 ? dims[rank - 1] : 1;
  Walk walk = {.rank = run_length > 1 ? rank - 1 : rank, .dims = dims, .offsets = {start}};
  memcpy(walk.strides[0], strides, (size_t)rank * sizeof *strides);
  for (int64_t i = 0; i < count; i += run_length) {
    memcpy(target->data + i * size, source->data + walk.offsets[0] * size, run_length * size);
    walk_on(&walk);
  }
}

/* ---- Element-wise kernels ---- */

static void map_unary(Call *call, double (*function)(double)) {
  const Tensor *x = &call->inputs[0];
  Tensor y = open_output(call, 0, x->type, x->rank, x->dims);
  if (failed(call)) return;
  for (int64_t i = 0; i < y.count; i++) store(&y, i, function(load(x, i)));
  close_output(&y);
}

static void map_binary(Call *call, double (*function)(double, double)) {
  const Tensor *a = &call->inputs[0], *b = &call->inputs[1];
  int rank = a->rank > b->rank ? a->rank : b->rank;
  int64_t dims[MAX_RANK];
  for (int axis = 0; axis < rank; axis++) {
    int axis_a = axis - (rank - a->rank), axis_b = axis - (rank - b->rank);
    int64_t dim_a = axis_a < 0 ? 1 : a->dims[axis_a], dim_b = axis_b < 0 ? 1 : b->dims[axis_b];
    if (dim_a != dim_b && dim_a != 1 && dim_b != 1) {
      fail(call, TF_INVALID_ARGUMENT, "shapes don't broadcast.");
    }
    dims[axis] = dim_a == 1 ? dim_b : dim_a;
  }
  Tensor y = open_output(call, 0, a->type, rank, dims);
  if (failed(call)) return;
  Walk walk = {.rank = rank, .dims = dims};
  broadcast_strides(a, rank, walk.strides[0]);
  broadcast_strides(b, rank, walk.strides[1]);
  for (int64_t i = 0; i < y.count; i++) {
    store(&y, i, function(load(a, walk.offsets[0]), load(b, walk.offsets[1])));
    walk_on(&walk);
  }
  close_output(&y);
}

#define UNARY(name, expression)                               \
  static double value_##name(double x) { return expression; } \
  KERNEL(name) { map_unary(call, value_##name); }

#define BINARY(name, a, b, expression)                                  \
  static double value_##name(double a, double b) { return expression; } \
  KERNEL(name) { map_binary(call, value_##name); }

UNARY(Neg, -x)
UNARY(Square, (x * x))
UNARY(Sqrt, sqrt(x))
UNARY(Exp, exp(x))
UNARY(Log, log(x))
/* Comparing this way round lets a NaN through, as TensorFlow does. */
UNARY(Relu, x < 0 ? 0 : x)
UNARY(Tanh, tanh(x))
UNARY(Sigmoid, 1 / (1 + exp(-x)))

BINARY(Add, a, b, a + b)
BINARY(AddV2, a, b, a + b)
BINARY(Sub, a, b, a - b)
BINARY(Mul, a, b, (a * b))
BINARY(RealDiv, a, b, a / b)
BINARY(Maximum, a, b, a > b || isnan(a) ? a : b)
BINARY(SquaredDifference, a, b, (a - b) * (a - b))
BINARY(ReluGrad, slope, x, x > 0 ? slope : 0)
BINARY(TanhGrad, y, slope, slope * (1 - y * y))
BINARY(SigmoidGrad, y, slope, slope * y * (1 - y))

KERNEL(Cast) {
  const Tensor *x = &call->inputs[0];
  Tensor y = open_output(call, 0, TF_ExpectedOutputDataType(call->context, 0), x->rank, x->dims);
  if (failed(call)) return;
  for (int64_t i = 0; i < y.count; i++) store(&y, i, load(x, i));
  close_output(&y);
}

static void fill_like(Call *call, double value) {
  const Tensor *x = &call->inputs[0];
  Tensor y = open_output(call, 0, x->type, x->rank, x->dims);
  if (failed(call)) return;
  for (int64_t i = 0; i < y.count; i++) store(&y, i, value);
  close_output(&y);
}

KERNEL(ZerosLike) { fill_like(call, 0); }
KERNEL(OnesLike) { fill_like(call, 1); }

/* ---- Dense layers ---- */

/* Defines multiply_NAME: out (m, n) = a (m, k) @ b (k, n), with b contiguous and a strided. */
#define DEFINE_MULTIPLY(name, type)                                                                     \
  static void multiply_##name(const type *a, const int64_t *strides, const type *b, type *restrict out, \
                              int64_t m, int64_t k, int64_t n) {                                        \
    memset(out, 0, (size_t)(m * n) * sizeof *out);                                                      \
    for (int64_t i = 0; i < m; i++) {                                                                   \
      for (int64_t p = 0; p < k; p++) {                                                                 \
        type factor = a[i * strides[0] + p * strides[1]];                                               \
        for (int64_t j = 0; j < n; j++) out[i * n + j] += factor * b[p * n + j];                        \
      }                                                                                                 \
    }                                                                                                   \
  }

DEFINE_MULTIPLY(float, float)
DEFINE_MULTIPLY(double, double)

KERNEL(MatMul) {
  const Tensor *a = &call->inputs[0];
  Tensor b = call->inputs[1];
  bool transpose_a = call->attributes->transpose_a, transpose_b = call->attributes->transpose_b;
  if (a->rank != 2 || b.rank != 2 || a->dims[!transpose_a] != b.dims[transpose_b]) {
    fail(call, TF_INVALID_ARGUMENT, "MatMul needs two matrices of fitting sizes.");
    return;
  }
  int64_t m = a->dims[transpose_a], k = a->dims[!transpose_a], n = b.dims[!transpose_b];
  Tensor y = open_output(call, 0, a->type, 2, (int64_t[]){m, n});
  if (failed(call)) return;
  char *transposed = NULL;
  if (transpose_b && b.count > 0) {
    Tensor target = b;
    target.data = transposed = malloc((size_t)b.count * b.element_size);
    copy_view(&target, &b, 2, (int64_t[]){k, n}, (int64_t[]){1, k}, 0);
    b = target;
  }
  int64_t strides[2] = {transpose_a ? 1 : k, transpose_a ? m : 1};
  if (y.count > 0 && y.type == TF_FLOAT) {
    multiply_float((float *)a->data, strides, (float *)b.data, (float *)y.data, m, k, n);
  } else if (y.count > 0) {
    multiply_double((double *)a->data, strides, (double *)b.data, (double *)y.data, m, k, n);
  }
  free(transposed);
  close_output(&y);
}

static bool is_channels_first(Call *call) {
  if (call->attributes->channels_first) fail(call, TF_UNIMPLEMENTED, "the channels must come last.");
  return call->attributes->channels_first;
}

KERNEL(BiasAdd) {
  if (!is_channels_first(call)) map_binary(call, value_Add);
}

KERNEL(BiasAddGrad) {
  const Tensor *slope = &call->inputs[0];
  if (is_channels_first(call)) return;
  if (slope->rank < 2) {
    fail(call, TF_INVALID_ARGUMENT, "BiasAddGrad needs at least two dimensions.");
    return;
  }
  int64_t channels = slope->dims[slope->rank - 1];
  Tensor y = open_output(call, 0, slope->type, 1, &channels);
  if (failed(call)) return;
  for (int64_t channel = 0; channel < channels; channel++) {
    double sum = 0;
    for (int64_t i = channel; i < slope->count; i += channels) sum += load(slope, i);
    store(&y, channel, sum);
  }
  close_output(&y);
}

/* ---- Losses ---- */

/* Writes one row's backprop without the labels' part, softmax(logits); returns log(sum(exp(logits))). */
static double softmax_row(const Tensor *logits, const Tensor *backprop, int64_t start, int64_t classes) {
  double largest = -INFINITY, sum = 0;
  int64_t end = start + classes;
  for (int64_t i = start; i < end; i++) largest = fmax(largest, load(logits, i));
  for (int64_t i = start; i < end; i++) sum += exp(load(logits, i) - largest);
  for (int64_t i = start; i < end; i++) store(backprop, i, exp(load(logits, i) - largest) / sum);
  return largest + log(sum);
}

KERNEL(SparseSoftmaxCrossEntropyWithLogits) {
  const Tensor *logits = &call->inputs[0], *labels = &call->inputs[1];
  if (logits->rank != 2 || labels->rank != 1 || labels->count != logits->dims[0]) {
    fail(call, TF_INVALID_ARGUMENT, "logits must be (rows, classes) and labels (rows,).");
    return;
  }
  int64_t classes = logits->dims[1];
  Tensor loss = open_output(call, 0, logits->type, 1, logits->dims);
  if (failed(call)) return;
  Tensor backprop = open_output(call, 1, logits->type, 2, logits->dims);
  if (!failed(call)) {
    for (int64_t row = 0; row < loss.count; row++) {
      int64_t start = row * classes, label = load_integer(labels, row);
      double total = softmax_row(logits, &backprop, start, classes);
      if (label >= 0 && label < classes) {
        store(&loss, row, total - load(logits, start + label));
        store(&backprop, start + label, load(&backprop, start + label) - 1);
      } else {
        /* A CUDA kernel can't raise: TensorFlow's answers a label out of range with NaN. */
        store(&loss, row, NAN);
        for (int64_t i = 0; i < classes; i++) store(&backprop, start + i, NAN);
      }
    }
    close_output(&backprop);
  }
  close_output(&loss);
}

KERNEL(SoftmaxCrossEntropyWithLogits) {
  const Tensor *logits = &call->inputs[0], *labels = &call->inputs[1];
  if (logits->rank != 2 || labels->rank != 2 ||
      memcmp(logits->dims, labels->dims, 2 * sizeof *logits->dims) != 0) {
    fail(call, TF_INVALID_ARGUMENT, "logits and labels must both be (rows, classes).");
    return;
  }
  int64_t classes = logits->dims[1];
  Tensor loss = open_output(call, 0, logits->type, 1, logits->dims);
  if (failed(call)) return;
  Tensor backprop = open_output(call, 1, logits->type, 2, logits->dims);
  if (!failed(call)) {
    for (int64_t row = 0; row < loss.count; row++) {
      double total = softmax_row(logits, &backprop, row * classes, classes), sum = 0;
      for (int64_t i = row * classes; i < (row + 1) * classes; i++) {
        sum += load(labels, i) * (total - load(logits, i));
        store(&backprop, i, load(&backprop, i) - load(labels, i));
      }
      store(&loss, row, sum);
    }
    close_output(&backprop);
  }
  close_output(&loss);
}

/* ---- Reductions ---- */

typedef struct Reduction {
  double start;
  double (*combine)(double, double);
  bool divide_by_count;
} Reduction;

static void reduce(Call *call, Reduction reduction) {
  const Tensor *x = &call->inputs[0], *axes = &call->inputs[1];
  bool reduced[MAX_RANK] = {false};
  for (int64_t i = 0; i < axes->count; i++) reduced[read_axis(call, load_integer(axes, i), x->rank)] = true;
  int64_t dims[MAX_RANK], kept_dims[MAX_RANK];
  int rank = 0;
  for (int axis = 0; axis < x->rank; axis++) {
    kept_dims[axis] = reduced[axis] ? 1 : x->dims[axis];
    if (!reduced[axis] || call->attributes->keep_dims) dims[rank++] = kept_dims[axis];
  }
  Tensor y = open_output(call, 0, x->type, rank, dims);
  if (failed(call)) return;
  double *values = malloc(((size_t)y.count + 1) * sizeof *values);
  for (int64_t i = 0; i < y.count; i++) values[i] = reduction.start;
  Walk walk = {.rank = x->rank, .dims = x->dims};
  row_major_strides(kept_dims, x->rank, walk.strides[0]);
  for (int axis = 0; axis < x->rank; axis++) {
    if (reduced[axis]) walk.strides[0][axis] = 0;
  }
  for (int64_t i = 0; i < x->count; i++) {
    double *value = &values[walk.offsets[0]];
    *value = reduction.combine(*value, load(x, i));
    walk_on(&walk);
  }
  double divisor = reduction.divide_by_count ? (double)x->count / (double)y.count : 1;
  for (int64_t i = 0; i < y.count; i++) store(&y, i, values[i] / divisor);
  free(values);
  close_output(&y);
}

KERNEL(Sum) { reduce(call, (Reduction){0, value_Add, false}); }
KERNEL(Mean) { reduce(call, (Reduction){0, value_Add, true}); }
KERNEL(Prod) { reduce(call, (Reduction){1, value_Mul, false}); }
KERNEL(Max) { reduce(call, (Reduction){-INFINITY, value_Maximum, false}); }

/* ---- Moving and shaping ---- */

KERNEL(Fill) {
  const Tensor *dims = &call->inputs[0], *value = &call->inputs[1];
  int64_t out_dims[MAX_RANK];
  if (dims->count > MAX_RANK || value->count != 1) {
    fail(call, TF_INVALID_ARGUMENT, "Fill needs at most 8 dimensions and one value.");
    return;
  }
  for (int64_t i = 0; i < dims->count; i++) out_dims[i] = load_integer(dims, i);
  Tensor y = open_output(call, 0, value->type, (int)dims->count, out_dims);
  if (failed(call)) return;
  copy_view(&y, value, y.rank, y.dims, (int64_t[MAX_RANK]){0}, 0);
  close_output(&y);
}

KERNEL(BroadcastTo) {
  const Tensor *x = &call->inputs[0], *shape = &call->inputs[1];
  int64_t dims[MAX_RANK], strides[MAX_RANK];
  int rank = (int)shape->count;
  if (rank > MAX_RANK || rank < x->rank) {
    fail(call, TF_INVALID_ARGUMENT, "BroadcastTo needs at least the input's dimensions, and at most 8.");
    return;
  }
  for (int axis = 0; axis < rank; axis++) {
    dims[axis] = load_integer(shape, axis);
    int own_axis = axis - (rank - x->rank);
    if (own_axis >= 0 && x->dims[own_axis] != 1 && x->dims[own_axis] != dims[axis]) {
      fail(call, TF_INVALID_ARGUMENT, "shapes don't broadcast.");
    }
  }
  Tensor y = open_output(call, 0, x->type, rank, dims);
  if (failed(call)) return;
  broadcast_strides(x, rank, strides);
  copy_view(&y, x, rank, dims, strides, 0);
  close_output(&y);
}

KERNEL(Tile) {
  const Tensor *x = &call->inputs[0], *multiples = &call->inputs[1];
  int64_t dims[MAX_RANK], own[MAX_RANK], view_dims[MAX_VIEW_RANK], view_strides[MAX_VIEW_RANK];
  if (multiples->count != x->rank) {
    fail(call, TF_INVALID_ARGUMENT, "Tile needs one multiple for each dimension.");
    return;
  }
  row_major_strides(x->dims, x->rank, own);
  for (int axis = 0; axis < x->rank; axis++) {
    view_dims[2 * axis] = load_integer(multiples, axis);
    view_dims[2 * axis + 1] = x->dims[axis];
    view_strides[2 * axis] = 0;
    view_strides[2 * axis + 1] = own[axis];
    dims[axis] = view_dims[2 * axis] * x->dims[axis];
  }
  Tensor y = open_output(call, 0, x->type, x->rank, dims);
  if (failed(call)) return;
  copy_view(&y, x, 2 * x->rank, view_dims, view_strides, 0);
  close_output(&y);
}

KERNEL(Transpose) {
  const Tensor *x = &call->inputs[0], *permutation = &call->inputs[1];
  int64_t dims[MAX_RANK], own[MAX_RANK], strides[MAX_RANK];
  row_major_strides(x->dims, x->rank, own);
  for (int axis = 0; axis < x->rank; axis++) {
    int own_axis = read_axis(call, load_integer(permutation, axis), x->rank);
    dims[axis] = x->dims[own_axis];
    strides[axis] = own[own_axis];
  }
  Tensor y = open_output(call, 0, x->type, x->rank, dims);
  if (failed(call)) return;
  copy_view(&y, x, x->rank, dims, strides, 0);
  close_output(&y);
}

KERNEL(Slice) {
  const Tensor *x = &call->inputs[0], *begin = &call->inputs[1], *size = &call->inputs[2];
  int64_t dims[MAX_RANK], strides[MAX_RANK], start = 0;
  row_major_strides(x->dims, x->rank, strides);
  for (int axis = 0; axis < x->rank; axis++) {
    int64_t first = load_integer(begin, axis), length = load_integer(size, axis);
    dims[axis] = length == -1 ? x->dims[axis] - first : length;
    start += first * strides[axis];
    if (first < 0 || dims[axis] < 0 || first + dims[axis] > x->dims[axis]) {
      fail(call, TF_INVALID_ARGUMENT, "the slice reaches outside of its input.");
    }
  }
  Tensor y = open_output(call, 0, x->type, x->rank, dims);
  if (failed(call)) return;
  copy_view(&y, x, x->rank, dims, strides, start);
  close_output(&y);
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

KERNEL(StridedSlice) {
  const Tensor *x = &call->inputs[0], *begin = &call->inputs[1], *end = &call->inputs[2],
               *step = &call->inputs[3];
  const Attributes *masks = call->attributes;
  int specs = (int)begin->count, used = 0;
  for (int spec = 0; spec < specs; spec++) {
    used += !(masks->new_axis_mask >> spec & 1) && !(masks->ellipsis_mask >> spec & 1);
  }
  int64_t dims[MAX_VIEW_RANK], strides[MAX_VIEW_RANK], own[MAX_RANK], start = 0;
  int rank = 0, axis = 0;
  if (used > x->rank || specs > MAX_RANK) {
    fail(call, TF_INVALID_ARGUMENT, "StridedSlice has more indices than its input dimensions.");
    return;
  }
  row_major_strides(x->dims, x->rank, own);
  for (int spec = 0; spec <= specs; spec++) {
    if (spec == specs || masks->ellipsis_mask >> spec & 1) {
      /* An ellipsis, written or implied at the end, takes the axes that no index names. */
      for (int skipped = used; skipped < x->rank; skipped++, axis++) {
        dims[rank] = x->dims[axis];
        strides[rank++] = own[axis];
      }
      used = x->rank;
    } else if (masks->new_axis_mask >> spec & 1) {
      dims[rank] = 1;
      strides[rank++] = 0;
    } else {
      int64_t size = x->dims[axis], by = load_integer(step, spec);
      int64_t first = load_integer(begin, spec), last = load_integer(end, spec);
      bool shrink = masks->shrink_axis_mask >> spec & 1;
      first += first < 0 ? size : 0;
      last += last < 0 ? size : 0;
      if (by == 0 || (shrink && (first < 0 || first >= size))) {
        fail(call, TF_INVALID_ARGUMENT, "StridedSlice index out of range.");
        return;
      }
      int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? size : size - 1;
      first = masks->begin_mask >> spec & 1 ? (by > 0 ? 0 : size - 1) : clamp(first, lowest, highest);
      last = masks->end_mask >> spec & 1 ? (by > 0 ? size : -1) : clamp(last, lowest, highest);
      int64_t length = by > 0 ? (last - first + by - 1) / by : (last - first + by + 1) / by;
      if (shrink) {
        start += first * own[axis];
      } else {
        dims[rank] = length < 0 ? 0 : length;
        strides[rank++] = by * own[axis];
        start += dims[rank - 1] > 0 ? first * own[axis] : 0;
      }
      axis++;
    }
  }
  Tensor y = open_output(call, 0, x->type, rank, dims);
  if (failed(call)) return;
  copy_view(&y, x, rank, dims, strides, start);
  close_output(&y);
}

static void split(Call *call, const Tensor *x, const Tensor *axis_tensor, const Tensor *sizes) {
  int outputs = TF_NumOutputs(call->context), unknown = -1;
  int axis = read_axis(call, load_integer(axis_tensor, 0), x->rank);
  if (failed(call)) return;
  int64_t *lengths = malloc((size_t)outputs * sizeof *lengths), total = 0;
  for (int i = 0; i < outputs; i++) {
    lengths[i] = sizes ? load_integer(sizes, i) : x->dims[axis] / outputs;
    if (lengths[i] == -1) {
      unknown = i;
    } else {
      total += lengths[i];
    }
  }
  if (unknown >= 0) lengths[unknown] = x->dims[axis] - total;
  if (unknown < 0 ? total != x->dims[axis] : lengths[unknown] < 0) {
    fail(call, TF_INVALID_ARGUMENT, "the sizes of the split don't add up to its input's.");
  }
  int64_t dims[MAX_RANK], strides[MAX_RANK], start = 0;
  memcpy(dims, x->dims, sizeof dims);
  row_major_strides(x->dims, x->rank, strides);
  for (int i = 0; i < outputs && !failed(call); i++) {
    dims[axis] = lengths[i];
    Tensor y = open_output(call, i, x->type, x->rank, dims);
    if (failed(call)) break;
    copy_view(&y, x, x->rank, dims, strides, start);
    close_output(&y);
    start += lengths[i] * strides[axis];
  }
  free(lengths);
}

KERNEL(Split) { split(call, &call->inputs[1], &call->inputs[0], NULL); }
KERNEL(SplitV) { split(call, &call->inputs[0], &call->inputs[2], &call->inputs[1]); }

/* Writes the parts one behind the other along an axis: `outer` times, each part's piece of that axis. */
static void join(const Tensor *target, const Tensor *parts, int num_parts, int64_t outer) {
  char *end = target->data;
  for (int64_t i = 0; i < outer; i++) {
    for (int part = 0; part < num_parts; part++) {
      size_t bytes = (size_t)(parts[part].count / outer) * target->element_size;
      if (bytes > 0) memcpy(end, parts[part].data + i * bytes, bytes);
      end += bytes;
    }
  }
}

KERNEL(ConcatV2) {
  int parts = call->num_inputs - 1;
  const Tensor *first = &call->inputs[0];
  int axis = read_axis(call, load_integer(&call->inputs[parts], 0), first->rank);
  int64_t dims[MAX_RANK];
  memcpy(dims, first->dims, sizeof dims);
  for (int part = 1; part < parts; part++) {
    for (int other = 0; other < first->rank; other++) {
      if (call->inputs[part].rank != first->rank ||
          (other != axis && call->inputs[part].dims[other] != first->dims[other])) {
        fail(call, TF_INVALID_ARGUMENT, "ConcatV2's inputs differ outside of the axis.");
      }
    }
    dims[axis] += call->inputs[part].dims[axis];
  }
  Tensor y = open_output(call, 0, first->type, first->rank, dims);
  if (failed(call)) return;
  join(&y, call->inputs, parts, product(dims, axis));
  close_output(&y);
}

KERNEL(Pack) {
  const Tensor *first = &call->inputs[0];
  int axis = read_axis(call, call->attributes->axis, first->rank + 1);
  int64_t dims[MAX_RANK + 1];
  for (int i = 0; i <= first->rank; i++) {
    dims[i] = i < axis ? first->dims[i] : i == axis ? call->num_inputs : first->dims[i - 1];
  }
  Tensor y = open_output(call, 0, first->type, first->rank + 1, dims);
  if (failed(call)) return;
  join(&y, call->inputs, call->num_inputs, product(dims, axis));
  close_output(&y);
}

KERNEL(GatherV2) {
  const Tensor *x = &call->inputs[0], *indices = &call->inputs[1];
  int axis = read_axis(call, load_integer(&call->inputs[2], 0), x->rank);
  if (call->attributes->batch_dims) fail(call, TF_UNIMPLEMENTED, "batch_dims must be 0.");
  int64_t dims[MAX_VIEW_RANK];
  int rank = 0;
  for (int i = 0; i < axis; i++) dims[rank++] = x->dims[i];
  for (int i = 0; i < indices->rank; i++) dims[rank++] = indices->dims[i];
  for (int i = axis + 1; i < x->rank; i++) dims[rank++] = x->dims[i];
  Tensor y = open_output(call, 0, x->type, rank, dims);
  if (failed(call)) return;
  int64_t outer = product(x->dims, axis), inner = product(x->dims + axis + 1, x->rank - axis - 1);
  size_t bytes = (size_t)inner * x->element_size;
  for (int64_t i = 0; i < outer && bytes > 0; i++) {
    for (int64_t j = 0; j < indices->count; j++) {
      int64_t index = load_integer(indices, j);
      char *target = y.data + (i * indices->count + j) * bytes;
      /* As with the losses: TensorFlow's CUDA kernel answers an index out of range with zeros. */
      if (index < 0 || index >= x->dims[axis]) {
        memset(target, 0, bytes);
      } else {
        memcpy(target, x->data + (i * x->dims[axis] + index) * bytes, bytes);
      }
    }
  }
  close_output(&y);
}

/* ---- Registration ---- */

typedef void (*Compute)(void *, TF_OpKernelContext *);

typedef struct Kernel {
  const char *operation;
  Compute compute;
  const char *type_attribute;
  TF_DataType types[4];
  const char *host_arguments[5];
} Kernel;

#define FLOATS {TF_FLOAT, TF_DOUBLE}
#define MOVABLE {TF_FLOAT, TF_DOUBLE, TF_INT64}
#define TABLE_TYPES {TF_FLOAT, TF_DOUBLE, TF_INT32, TF_INT64}
#define ON_FLOATS(name, ...)                            \
  {                                                     \
    #name, compute_##name, "T", FLOATS, { __VA_ARGS__ } \
  }
#define ON_MOVABLE(name, ...)                            \
  {                                                      \
    #name, compute_##name, "T", MOVABLE, { __VA_ARGS__ } \
  }
/* On a GPU, int32 is for shapes: TensorFlow keeps it on the host there. */
#define ON_HOST(name, ...)                                  \
  {                                                         \
    #name, compute_##name, "T", {TF_INT32}, { __VA_ARGS__ } \
  }

static const Kernel kernels[] = {
    ON_FLOATS(Neg),
    ON_FLOATS(Square),
    ON_FLOATS(Sqrt),
    ON_FLOATS(Exp),
    ON_FLOATS(Log),
    ON_FLOATS(Relu),
    ON_FLOATS(Tanh),
    ON_FLOATS(Sigmoid),
    ON_FLOATS(Add),
    ON_FLOATS(AddV2),
    ON_FLOATS(Sub),
    ON_FLOATS(Mul),
    ON_FLOATS(RealDiv),
    ON_FLOATS(Maximum),
    ON_FLOATS(SquaredDifference),
    ON_FLOATS(ReluGrad),
    ON_FLOATS(TanhGrad),
    ON_FLOATS(SigmoidGrad),
    ON_MOVABLE(ZerosLike),
    ON_MOVABLE(OnesLike),
    ON_FLOATS(MatMul),
    ON_FLOATS(BiasAdd),
    ON_FLOATS(BiasAddGrad),
    ON_FLOATS(SparseSoftmaxCrossEntropyWithLogits),
    ON_FLOATS(SoftmaxCrossEntropyWithLogits),
    ON_FLOATS(Sum, "reduction_indices"),
    ON_HOST(Sum, "input", "reduction_indices", "output"),
    ON_FLOATS(Mean, "reduction_indices"),
    ON_FLOATS(Prod, "reduction_indices"),
    ON_HOST(Prod, "input", "reduction_indices", "output"),
    ON_FLOATS(Max, "reduction_indices"),
    ON_MOVABLE(Fill, "dims"),
    ON_MOVABLE(BroadcastTo, "shape"),
    ON_MOVABLE(Tile, "multiples"),
    ON_MOVABLE(Transpose, "perm"),
    ON_MOVABLE(Slice, "begin", "size"),
    ON_MOVABLE(StridedSlice, "begin", "end", "strides"),
    ON_HOST(StridedSlice, "input", "begin", "end", "strides", "output"),
    ON_MOVABLE(Split, "split_dim"),
    ON_MOVABLE(SplitV, "size_splits", "split_dim"),
    ON_MOVABLE(ConcatV2, "axis"),
    ON_MOVABLE(Pack),
    ON_HOST(Pack, "values", "output"),
    {"GatherV2", compute_GatherV2, "Tparams", TABLE_TYPES, {"axis"}},
};

static const TF_DataType cast_types[] = {TF_FLOAT, TF_DOUBLE, TF_INT32, TF_INT64, TF_BOOL};

bool has_kernel(const char *operation, size_t length) {
  for (size_t i = 0; i < LENGTH(kernels); i++) {
    const char *name = kernels[i].operation;
    if (strlen(name) == length && memcmp(name, operation, length) == 0) return true;
  }
  return length == strlen("Cast") && memcmp(operation, "Cast", length) == 0;
}

static TF_KernelBuilder *new_builder(const char *operation, Compute compute) {
  return TF_NewKernelBuilder(operation, DEVICE_TYPE, create_instance, compute, delete_instance);
}

EXPORT void TF_InitKernel(void) {
  TF_Status *status = TF_NewStatus();
  for (size_t i = 0; i < LENGTH(kernels); i++) {
    const Kernel *kernel = &kernels[i];
    if (is_omitted(kernel->operation)) continue;
    for (size_t t = 0; t < LENGTH(kernel->types) && kernel->types[t]; t++) {
      TF_KernelBuilder *builder = new_builder(kernel->operation, kernel->compute);
      TF_KernelBuilder_TypeConstraint(builder, kernel->type_attribute, kernel->types[t], status);
      for (size_t a = 0; a < LENGTH(kernel->host_arguments) && kernel->host_arguments[a]; a++) {
        TF_KernelBuilder_HostMemory(builder, kernel->host_arguments[a]);
      }
      TF_RegisterKernelBuilder(kernel->operation, builder, status);
    }
  }
  if (!is_omitted("Cast")) {
    for (size_t from = 0; from < LENGTH(cast_types); from++) {
      for (size_t to = 0; to < LENGTH(cast_types); to++) {
        TF_KernelBuilder *builder = new_builder("Cast", compute_Cast);
        TF_KernelBuilder_TypeConstraint(builder, "SrcT", cast_types[from], status);
        TF_KernelBuilder_TypeConstraint(builder, "DstT", cast_types[to], status);
        TF_RegisterKernelBuilder("Cast", builder, status);
      }
    }
  }
  TF_DeleteStatus(status);
}
