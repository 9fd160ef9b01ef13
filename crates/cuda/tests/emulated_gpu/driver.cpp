// A CUDA driver with one emulated GPU: memory is the host's, and every call is done when it returns.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace {
typedef void (*Entry)(const void*);
typedef void (*Launch)(Entry, const void*, const uint32_t*, uint32_t, uint32_t, uint32_t);
struct Function {
    Entry entry;
    Launch launch;
    std::string name;
};
typedef std::vector<std::function<void()>> Graph;

std::recursive_mutex device;             // one thing at a time
thread_local Graph* recording = nullptr; // what this thread submits is recorded, not run
int number(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int submit(std::function<void()> work) {
    std::lock_guard<std::recursive_mutex> lock(device);
    if (recording) recording->push_back(work);
    else work();
    return 0;
}

int run(const Function& f, uint32_t x, uint32_t y, uint32_t threads, uint32_t shared, uint32_t together,
        void** params) {
    // the size of the arguments is not known: those of recorded launches are copied generously
    std::vector<char> args((char*)params[0], (char*)params[0] + 1024);
    return submit([f, x, y, threads, shared, together, args]() {
        const uint32_t grid[2] = {x, y};
        alignas(16) char aligned[1024];
        memcpy(aligned, args.data(), args.size());
        if (getenv("EMULATED_GPU_TRACE"))
            fprintf(stderr, "launch %s %u %u x %u, %u together\n", f.name.c_str(), x, y, threads, together);
        f.launch(f.entry, aligned, grid, threads, shared, together);
    });
}
}

extern "C" {
struct LaunchAttribute {
    int id;
    char pad[4];
    union {
        uint32_t dim[3];
        char bytes[64];
    };
};
struct LaunchConfig {
    uint32_t grid[3], block[3], shared;
    void* stream;
    LaunchAttribute* attributes;
    uint32_t count;
};

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorString(int, const char** text) { return *text = "an error of the emulated GPU", 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal ? 101 : 0; }
int cuDeviceGetName(char* name, int len, int) { return snprintf(name, len, "emulated GPU"), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = 4ull << 30, 0; }
int cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = 4ull << 30, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 75: return *value = number("EMULATED_GPU_GENERATION", 9), 0; // compute capability
        case 76: return *value = 0, 0;
        case 16: return *value = number("EMULATED_GPU_PROCESSORS", 4), 0;
        case 97: return *value = 227 << 10, 0; // shared memory
        default: return *value = 0, 0;
    }
}
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = (void*)1, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuStreamCreate(void** stream, unsigned) { return *stream = (void*)1, 0; }
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = (void*)1, 0; }
int cuEventDestroy_v2(void*) { return 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventSynchronize(void*) { return 0; }

int cuMemAlloc_v2(uint64_t* at, size_t bytes) {
    return *at = (uint64_t)aligned_alloc(512, (bytes + 511) / 512 * 512), *at ? 0 : 2;
}
int cuMemFree_v2(uint64_t at) { return free((void*)at), 0; }
int cuMemHostAlloc(void** at, size_t bytes, unsigned) {
    return *at = aligned_alloc(512, (bytes + 511) / 512 * 512), *at ? 0 : 2;
}
int cuMemFreeHost(void* at) { return free(at), 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
    return submit([=]() { memcpy((void*)to, from, bytes); });
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
    return submit([=]() { memcpy(to, (const void*)from, bytes); });
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
    return submit([=]() { memmove((void*)to, (const void*)from, bytes); });
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void*) {
    return submit([=]() { memset((void*)to, value, bytes); });
}

int cuModuleLoadData(void** module, const void* code) {
    *module = dlopen((const char*)code, RTLD_NOW | RTLD_LOCAL);
    if (!*module) fprintf(stderr, "emulated GPU: %s\n", dlerror());
    return *module ? 0 : 200;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    auto entry = (Entry)dlsym(module, (std::string("emulated_") + name).c_str());
    auto launch = (Launch)dlsym(module, "emulated_launch");
    if (!entry || !launch) return 500;
    return *function = new Function{entry, launch, name}, 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernelEx(const LaunchConfig* c, void* function, void** params, void**) {
    uint32_t together = 1;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->attributes[i].id == 4) together = c->attributes[i].dim[0];
    return run(*(Function*)function, c->grid[0], c->grid[1], c->block[0], c->shared, together, params);
}
int cuLaunchCooperativeKernel(void* function, unsigned x, unsigned y, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned shared, void*, void** params) {
    return run(*(Function*)function, x, y, threads, shared, x * y, params);
}

int cuStreamBeginCapture_v2(void*, int) { return recording = new Graph, 0; }
int cuStreamEndCapture(void*, void** graph) { return *graph = recording, recording = nullptr, 0; }
int cuGraphInstantiateWithFlags(void** launches, void* graph, unsigned long long) {
    return *launches = new Graph(*(Graph*)graph), 0;
}
int cuGraphDestroy(void* graph) { return delete (Graph*)graph, 0; }
int cuGraphExecDestroy(void* launches) { return delete (Graph*)launches, 0; }
int cuGraphLaunch(void* launches, void*) {
    for (auto& work : *(Graph*)launches) submit(work);
    return 0;
}
}
