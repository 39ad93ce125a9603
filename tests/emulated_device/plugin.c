/* An emulated accelerator for tests: a TensorFlow PluggableDevice on the host's memory and processor.
 *
 * The device has its own allocator with a limit and counters, and TensorFlow moves data to and from it with
 * the callbacks below. Streams run at once on the calling thread: work is complete when the call that
 * enqueues it returns, so events are always complete and waiting is free.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emulated.h"

#define PLATFORM_NAME "ANER_EMULATED"
#define MAX_DEVICES 16
#define DEFAULT_DEVICES 2
#define DEFAULT_MEMORY_LIMIT (INT64_C(4) << 30)

/* At least what TensorFlow checks of any tensor's data, and what its best-fit allocator hands out in. */
#define ALIGNMENT 256

/* Allocations carry their size in front of them, because TensorFlow does not give it back on deallocation. */
#define HEADER_BYTES ALIGNMENT

static Device devices[MAX_DEVICES];
static int device_count = DEFAULT_DEVICES;

static Device *device_of(const SP_Device *device) { return device->device_handle; }

static void succeed(TF_Status *status) { TF_SetStatus(status, TF_OK, ""); }

/* ---- Memory ---- */

static void *allocate_aligned(uint64_t size) {
  return aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

static void allocate(const SP_Device *sp_device, uint64_t size, int64_t memory_space,
                     SP_DeviceMemoryBase *memory) {
  (void)memory_space;
  Device *device = device_of(sp_device);
  Counters *counters = &device->counters;
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = NULL;
  memory->size = 0;
  if (size == 0) return;

  int64_t bytes_in_use = atomic_fetch_add(&counters->bytes_in_use, (int64_t)size) + (int64_t)size;
  char *block = bytes_in_use > device->memory_limit ? NULL : allocate_aligned(HEADER_BYTES + size);
  if (block == NULL) {
    atomic_fetch_sub(&counters->bytes_in_use, (int64_t)size);
    return;
  }
  memcpy(block, &size, sizeof size);
  memory->opaque = block + HEADER_BYTES;
  memory->size = size;
  atomic_fetch_add(&counters->allocations, 1);
  int_least64_t peak = atomic_load(&counters->peak_bytes_in_use);
  while (bytes_in_use > peak &&
         !atomic_compare_exchange_weak(&counters->peak_bytes_in_use, &peak, bytes_in_use)) {
  }
}

static void deallocate(const SP_Device *sp_device, SP_DeviceMemoryBase *memory) {
  if (memory->opaque == NULL) return;
  char *block = (char *)memory->opaque - HEADER_BYTES;
  uint64_t size;
  memcpy(&size, block, sizeof size);
  atomic_fetch_sub(&device_of(sp_device)->counters.bytes_in_use, (int64_t)size);
  free(block);
}

static void *host_memory_allocate(const SP_Device *device, uint64_t size) {
  (void)device;
  return allocate_aligned(size);
}

static void host_memory_deallocate(const SP_Device *device, void *memory) {
  (void)device;
  free(memory);
}

static TF_Bool get_allocator_stats(const SP_Device *sp_device, SP_AllocatorStats *stats) {
  Device *device = device_of(sp_device);
  memset(stats, 0, sizeof *stats);
  stats->struct_size = SP_ALLOCATORSTATS_STRUCT_SIZE;
  stats->num_allocs = atomic_load(&device->counters.allocations);
  stats->bytes_in_use = atomic_load(&device->counters.bytes_in_use);
  stats->peak_bytes_in_use = atomic_load(&device->counters.peak_bytes_in_use);
  stats->has_bytes_limit = 1;
  stats->bytes_limit = device->memory_limit;
  return 1;
}

static TF_Bool device_memory_usage(const SP_Device *sp_device, int64_t *free_bytes, int64_t *total_bytes) {
  Device *device = device_of(sp_device);
  *total_bytes = device->memory_limit;
  *free_bytes = device->memory_limit - atomic_load(&device->counters.bytes_in_use);
  return 1;
}

/* ---- Streams, events and timers ---- */

struct SP_Event_st {
  char unused; /* C forbids an empty structure */
};

struct SP_Timer_st {
  struct timespec start, stop;
};

static void create_stream(const SP_Device *device, SP_Stream *stream, TF_Status *status) {
  *stream = malloc(sizeof **stream);
  (*stream)->device = device_of(device);
  succeed(status);
}

static void destroy_stream(const SP_Device *device, SP_Stream stream) {
  (void)device;
  free(stream);
}

static void create_stream_dependency(const SP_Device *device, SP_Stream dependent, SP_Stream other,
                                     TF_Status *status) {
  (void)device, (void)dependent, (void)other;
  succeed(status);
}

static void get_stream_status(const SP_Device *device, SP_Stream stream, TF_Status *status) {
  (void)device, (void)stream;
  succeed(status);
}

static void create_event(const SP_Device *device, SP_Event *event, TF_Status *status) {
  (void)device;
  *event = malloc(sizeof **event);
  succeed(status);
}

static void destroy_event(const SP_Device *device, SP_Event event) {
  (void)device;
  free(event);
}

static SE_EventStatus get_event_status(const SP_Device *device, SP_Event event) {
  (void)device, (void)event;
  return SE_EVENT_COMPLETE;
}

static void record_event(const SP_Device *device, SP_Stream stream, SP_Event event, TF_Status *status) {
  (void)device, (void)stream, (void)event;
  succeed(status);
}

static void wait_for_event(const SP_Device *const device, SP_Stream stream, SP_Event event,
                           TF_Status *const status) {
  (void)device, (void)stream, (void)event;
  succeed(status);
}

static void block_host_for_event(const SP_Device *device, SP_Event event, TF_Status *status) {
  (void)device, (void)event;
  succeed(status);
}

static void block_host_until_done(const SP_Device *device, SP_Stream stream, TF_Status *status) {
  (void)device, (void)stream;
  succeed(status);
}

static void synchronize_all_activity(const SP_Device *device, TF_Status *status) {
  (void)device;
  succeed(status);
}

static TF_Bool host_callback(const SP_Device *device, SP_Stream stream, SE_StatusCallbackFn callback,
                             void *argument) {
  (void)device, (void)stream;
  TF_Status *status = TF_NewStatus();
  callback(argument, status);
  bool succeeded = TF_GetCode(status) == TF_OK;
  TF_DeleteStatus(status);
  return succeeded;
}

static void create_timer(const SP_Device *device, SP_Timer *timer, TF_Status *status) {
  (void)device;
  *timer = calloc(1, sizeof **timer);
  succeed(status);
}

static void destroy_timer(const SP_Device *device, SP_Timer timer) {
  (void)device;
  free(timer);
}

static void start_timer(const SP_Device *device, SP_Stream stream, SP_Timer timer, TF_Status *status) {
  (void)device, (void)stream;
  clock_gettime(CLOCK_MONOTONIC, &timer->start);
  succeed(status);
}

static void stop_timer(const SP_Device *device, SP_Stream stream, SP_Timer timer, TF_Status *status) {
  (void)device, (void)stream;
  clock_gettime(CLOCK_MONOTONIC, &timer->stop);
  succeed(status);
}

static uint64_t timer_nanoseconds(SP_Timer timer) {
  int64_t seconds = timer->stop.tv_sec - timer->start.tv_sec;
  return (uint64_t)(seconds * INT64_C(1000000000) + (timer->stop.tv_nsec - timer->start.tv_nsec));
}

/* ---- Copies ---- */

static void sync_memcpy_dtoh(const SP_Device *device, void *host, const SP_DeviceMemoryBase *source,
                             uint64_t size, TF_Status *status) {
  Counters *counters = &device_of(device)->counters;
  memcpy(host, source->opaque, size);
  atomic_fetch_add(&counters->readbacks, 1);
  atomic_fetch_add(&counters->readback_bytes, (int64_t)size);
  succeed(status);
}

static void sync_memcpy_htod(const SP_Device *device, SP_DeviceMemoryBase *target, const void *host,
                             uint64_t size, TF_Status *status) {
  Counters *counters = &device_of(device)->counters;
  memcpy(target->opaque, host, size);
  atomic_fetch_add(&counters->uploads, 1);
  atomic_fetch_add(&counters->uploaded_bytes, (int64_t)size);
  succeed(status);
}

static void sync_memcpy_dtod(const SP_Device *device, SP_DeviceMemoryBase *target,
                             const SP_DeviceMemoryBase *source, uint64_t size, TF_Status *status) {
  memmove(target->opaque, source->opaque, size);
  atomic_fetch_add(&device_of(device)->counters.device_copies, 1);
  succeed(status);
}

static void memcpy_dtoh(const SP_Device *device, SP_Stream stream, void *host,
                        const SP_DeviceMemoryBase *source, uint64_t size, TF_Status *status) {
  (void)stream;
  sync_memcpy_dtoh(device, host, source, size, status);
}

static void memcpy_htod(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *target,
                        const void *host, uint64_t size, TF_Status *status) {
  (void)stream;
  sync_memcpy_htod(device, target, host, size, status);
}

static void memcpy_dtod(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *target,
                        const SP_DeviceMemoryBase *source, uint64_t size, TF_Status *status) {
  (void)stream;
  sync_memcpy_dtod(device, target, source, size, status);
}

static void fill_bytes(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *target,
                       uint8_t pattern, uint64_t size, TF_Status *status) {
  (void)device, (void)stream;
  memset(target->opaque, pattern, size);
  succeed(status);
}

static void fill_words(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *target,
                       uint32_t pattern, uint64_t size, TF_Status *status) {
  (void)device, (void)stream;
  uint32_t *words = target->opaque;
  for (uint64_t i = 0; i < size / sizeof *words; i++) words[i] = pattern;
  succeed(status);
}

static void fill_zeros(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *target, uint64_t size,
                       TF_Status *status) {
  fill_bytes(device, stream, target, 0, size, status);
}

/* ---- Platform ---- */

static void get_device_count(const SP_Platform *platform, int *count, TF_Status *status) {
  (void)platform;
  *count = device_count;
  succeed(status);
}

static void create_device(const SP_Platform *platform, SE_CreateDeviceParams *params, TF_Status *status) {
  (void)platform;
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->device_handle = &devices[params->ordinal];
  succeed(status);
}

static void destroy_device(const SP_Platform *platform, SP_Device *device) {
  (void)platform;
  device->device_handle = NULL;
}

static void create_device_fns(const SP_Platform *platform, SE_CreateDeviceFnsParams *params,
                              TF_Status *status) {
  (void)platform;
  *params->device_fns = (SP_DeviceFns){.struct_size = SP_DEVICE_FNS_STRUCT_SIZE};
  succeed(status);
}

static void destroy_device_fns(const SP_Platform *platform, SP_DeviceFns *functions) {
  (void)platform, (void)functions;
}

static void create_stream_executor(const SP_Platform *platform, SE_CreateStreamExecutorParams *params,
                                   TF_Status *status) {
  (void)platform;
  *params->stream_executor = (SP_StreamExecutor){
      .struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE,
      .allocate = allocate,
      .deallocate = deallocate,
      .host_memory_allocate = host_memory_allocate,
      .host_memory_deallocate = host_memory_deallocate,
      .get_allocator_stats = get_allocator_stats,
      .device_memory_usage = device_memory_usage,
      .create_stream = create_stream,
      .destroy_stream = destroy_stream,
      .create_stream_dependency = create_stream_dependency,
      .get_stream_status = get_stream_status,
      .create_event = create_event,
      .destroy_event = destroy_event,
      .get_event_status = get_event_status,
      .record_event = record_event,
      .wait_for_event = wait_for_event,
      .create_timer = create_timer,
      .destroy_timer = destroy_timer,
      .start_timer = start_timer,
      .stop_timer = stop_timer,
      .memcpy_dtoh = memcpy_dtoh,
      .memcpy_htod = memcpy_htod,
      .memcpy_dtod = memcpy_dtod,
      .sync_memcpy_dtoh = sync_memcpy_dtoh,
      .sync_memcpy_htod = sync_memcpy_htod,
      .sync_memcpy_dtod = sync_memcpy_dtod,
      .block_host_for_event = block_host_for_event,
      .block_host_until_done = block_host_until_done,
      .synchronize_all_activity = synchronize_all_activity,
      .mem_zero = fill_zeros,
      .memset = fill_bytes,
      .memset32 = fill_words,
      .host_callback = host_callback,
  };
  succeed(status);
}

static void destroy_stream_executor(const SP_Platform *platform, SP_StreamExecutor *executor) {
  (void)platform, (void)executor;
}

static void create_timer_fns(const SP_Platform *platform, SP_TimerFns *functions, TF_Status *status) {
  (void)platform;
  functions->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  functions->nanoseconds = timer_nanoseconds;
  succeed(status);
}

static void destroy_timer_fns(const SP_Platform *platform, SP_TimerFns *functions) {
  (void)platform, (void)functions;
}

static void destroy_platform(SP_Platform *platform) { (void)platform; }

static void destroy_platform_fns(SP_PlatformFns *functions) { (void)functions; }

/* ---- Settings ---- */

/* Reads a whole number from the environment; the default stands when the variable is unset or empty. */
static int64_t integer_setting(const char *name, int64_t standard, int64_t low, int64_t high,
                               TF_Status *status) {
  const char *text = getenv(name);
  if (text == NULL || *text == '\0') return standard;
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (errno == 0 && *end == '\0' && value >= low && value <= high) return value;
  char message[256];
  snprintf(message, sizeof message, "%s=%s: write a whole number from %lld to %lld.", name, text,
           (long long)low, (long long)high);
  TF_SetStatus(status, TF_INVALID_ARGUMENT, message);
  return standard;
}

/* Returns the next name of a comma-separated list and moves `cursor` behind it; NULL at the end. */
static const char *next_name(const char **cursor, size_t *length) {
  const char *name = *cursor + strspn(*cursor, ", ");
  *length = strcspn(name, ", ");
  *cursor = name + *length;
  return *length ? name : NULL;
}

static bool is_listed(const char *variable, const char *operation) {
  const char *cursor = getenv(variable), *name;
  size_t length;
  if (cursor == NULL) return false;
  while ((name = next_name(&cursor, &length)) != NULL) {
    if (strlen(operation) == length && memcmp(operation, name, length) == 0) return true;
  }
  return false;
}

bool is_omitted(const char *operation) { return is_listed("ANER_EMULATED_OMIT", operation); }
bool is_wrong(const char *operation) { return is_listed("ANER_EMULATED_WRONG", operation); }

/* A misspelt name would change nothing and let the test that relies on it pass for the wrong reason. */
static void check_names(const char *variable, TF_Status *status) {
  const char *cursor = getenv(variable), *name;
  size_t length;
  if (cursor == NULL) return;
  while ((name = next_name(&cursor, &length)) != NULL) {
    if (has_kernel(name, length)) continue;
    char message[256];
    snprintf(message, sizeof message, "%s: this device has no kernel named %.*s.", variable, (int)length,
             name);
    TF_SetStatus(status, TF_INVALID_ARGUMENT, message);
    return;
  }
}

/* ---- Entry points ---- */

/* TensorFlow aborts the process with our message when the status is not OK. */
EXPORT void SE_InitPlugin(SE_PlatformRegistrationParams *params, TF_Status *status) {
  succeed(status);
  device_count = (int)integer_setting("ANER_EMULATED_DEVICES", DEFAULT_DEVICES, 0, MAX_DEVICES, status);
  int64_t limit = integer_setting("ANER_EMULATED_MEMORY", DEFAULT_MEMORY_LIMIT, 1, INT64_MAX, status);
  check_names("ANER_EMULATED_OMIT", status);
  check_names("ANER_EMULATED_WRONG", status);
  if (TF_GetCode(status) != TF_OK) return;

  for (int ordinal = 0; ordinal < device_count; ordinal++) devices[ordinal].memory_limit = limit;
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = PLATFORM_NAME;
  params->platform->type = DEVICE_TYPE;
  params->platform->supports_unified_memory = 0;
  /* TensorFlow's best-fit allocator serves CUDA too, so its statistics behave as they do there. Growth is
   * forced, so that a process doesn't take the whole limit from the host at once. */
  params->platform->use_bfc_allocator = 1;
  params->platform->force_memory_growth = 1;
  params->platform_fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  params->platform_fns->get_device_count = get_device_count;
  params->platform_fns->create_device = create_device;
  params->platform_fns->destroy_device = destroy_device;
  params->platform_fns->create_device_fns = create_device_fns;
  params->platform_fns->destroy_device_fns = destroy_device_fns;
  params->platform_fns->create_stream_executor = create_stream_executor;
  params->platform_fns->destroy_stream_executor = destroy_stream_executor;
  params->platform_fns->create_timer_fns = create_timer_fns;
  params->platform_fns->destroy_timer_fns = destroy_timer_fns;
  params->destroy_platform = destroy_platform;
  params->destroy_platform_fns = destroy_platform_fns;
}

/* Returns the counters of a device, which live as long as the process; NULL if there is no such device. */
EXPORT const Counters *aner_emulated_counters(int ordinal) {
  return ordinal >= 0 && ordinal < device_count ? &devices[ordinal].counters : NULL;
}
