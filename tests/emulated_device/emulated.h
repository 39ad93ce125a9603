/* What the two halves of the emulated accelerator share: plugin.c is the device, kernels.c computes.
 *
 * tensorflow/c/kernels.h is not included here: it defines a constant, so that only one file can have it.
 */
#ifndef ANER_NB_TESTS_EMULATED_H_
#define ANER_NB_TESTS_EMULATED_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

#define EXPORT __attribute__((visibility("default")))

/* The TensorFlow device type. "GPU", because the product asks for "/GPU:0" on real accelerators too. */
#define DEVICE_TYPE "GPU"

/* What happened on one device since the process started; runtime.py mirrors the order of the fields. */
typedef struct Counters {
  atomic_int_least64_t bytes_in_use; /* held by TensorFlow's allocator, not by tensors */
  atomic_int_least64_t peak_bytes_in_use;
  atomic_int_least64_t allocations;
  atomic_int_least64_t uploads; /* copies from host to device */
  atomic_int_least64_t uploaded_bytes;
  atomic_int_least64_t readbacks; /* copies from device to host */
  atomic_int_least64_t readback_bytes;
  atomic_int_least64_t device_copies; /* copies within the device */
  atomic_int_least64_t kernel_runs;
} Counters;

typedef struct Device {
  int64_t memory_limit;
  Counters counters;
} Device;

struct SP_Stream_st {
  Device *device;
};

/* True if ANER_EMULATED_OMIT lists the operation. */
bool is_omitted(const char *operation);

/* True if ANER_EMULATED_WRONG lists the operation. */
bool is_wrong(const char *operation);

/* True if kernels.c has a kernel for an operation with the given name of `length` characters. */
bool has_kernel(const char *operation, size_t length);

#endif
