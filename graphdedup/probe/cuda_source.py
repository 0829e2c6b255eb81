"""The probe's kernels in CUDA C++, compiled at run time.

None of them can hang: what waits does so for a bounded number of loops, and every kernel is right at any cluster size. Each
begins with ``griddepcontrol.wait``, so that it is right behind a programmatic edge as well.
"""

from __future__ import annotations

from typing import Any

from graphdedup.driver.cuda_calls import call
from graphdedup.probe.bench import NotHere
from graphdedup.probe.spec import DEEP_WORDS, FUNCTIONS

__all__ = ["LOG_ENTRIES", "WIDE_BYTES", "Functions"]

LOG_ENTRIES = 64
WIDE_BYTES = 96 << 10
"""Dynamic shared memory that ``wide`` may have: more than the 48 KB that need no permission."""

_SOURCE = r"""
typedef unsigned int u32;
typedef unsigned long long u64;
struct Task { u32* target; const u32* source; u32 words; u32 constant; u32* stamp; u64* log; };

__device__ void stamp(const Task& t, u32 function) {
  if (threadIdx.x | threadIdx.y | threadIdx.z) return;
  u32 x = 1, y = 1, z = 1, shared, one, two;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(x));
  asm volatile("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(y));
  asm volatile("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(z));
#endif
  atomicMax(t.stamp + 8, x); atomicMax(t.stamp + 9, y); atomicMax(t.stamp + 10, z);
  if (blockIdx.x | blockIdx.y | blockIdx.z) return;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared));
  asm volatile("mov.u32 %0, %%envreg1;" : "=r"(one));  // where a cooperative launch has its barrier
  asm volatile("mov.u32 %0, %%envreg2;" : "=r"(two));
  t.stamp[0] = function;
  t.stamp[1] = gridDim.x; t.stamp[2] = gridDim.y; t.stamp[3] = gridDim.z;
  t.stamp[4] = blockDim.x; t.stamp[5] = blockDim.y; t.stamp[6] = blockDim.z;
  t.stamp[7] = shared; t.stamp[11] = (one | two) != 0; t.stamp[12] = t.constant;
}
#if __CUDA_ARCH__ >= 900
#define CLUSTER_OF_TWO __cluster_dims__(2, 1, 1)
#else
#define CLUSTER_OF_TWO
#endif
__device__ void begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ u32 first() {
  u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  return block * blockDim.x * blockDim.y * blockDim.z + thread;
}
__device__ u32 stride() { return gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z; }
__device__ u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }

#define KERNEL(name, number, expression) \
extern "C" __global__ void name(Task t) { \
  begin(); \
  for (u32 i = first(); i < t.words; i += stride()) { \
    u32 s = t.source[i], c = t.constant; \
    t.target[i] = expression; } \
  stamp(t, number); }
"""

# NUMBER stands for the function's index in FUNCTIONS.
_PARTS = {
    "add": "KERNEL(add, NUMBER, s + c)",
    "multiply": "KERNEL(multiply, NUMBER, s * c + i)",
    "xor": "KERNEL(exclusive_or, NUMBER, s ^ c)",
    "mix": "KERNEL(mix, NUMBER, t.target[i] * 3u + s + c)",
    "wide": r"""
extern __shared__ u32 room[];
extern "C" __global__ void wide(Task t) {
  begin();
  u32 bytes; asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  u32 own = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  for (u32 i = first(); i < t.words; i += stride()) {
    u32 value = t.source[i] + t.constant;
    if (bytes / 4 > own) { u32 at = bytes / 4 - 1 - own; room[at] = value; value = ((volatile u32*)room)[at]; }
    t.target[i] = value;
  }
  stamp(t, NUMBER); }""",
    "deep": r"""
extern "C" __global__ void deep(Task t) {
  begin();
  u32 local[DEEP_WORDS];
  for (u32 i = first(); i < t.words; i += stride()) {
    u32 value = t.source[i];
    for (u32 k = 0; k < DEEP_WORDS; ++k) local[(k * 7u + value) % DEEP_WORDS] = value + t.constant;
    t.target[i] = local[(value * 5u + t.constant) % DEEP_WORDS]; }
  stamp(t, NUMBER); }""",
    "says": r"""
extern "C" int printf(const char*, ...);
extern "C" __global__ void says(Task t) {
  begin();
  for (u32 i = first(); i < t.words; i += stride()) {
    t.target[i] = t.source[i] + t.constant;
    if (t.constant == 0xFFFFFFFEu) printf("constant %u\n", t.constant);
  }
  stamp(t, NUMBER); }""",
    "elsewhere": "KERNEL(elsewhere, NUMBER, s + c)",
    "late": "KERNEL(late, NUMBER, s + c)",
    "interval": r"""
extern "C" __global__ void interval(Task t) {
  begin();
  if (first()) return;
  u64 start = now(), end = start;
  for (u32 loops = 0; loops < 2000000u && end - start < 4000000ull; ++loops) end = now();
  u64 at = atomicAdd(t.log, 1ull) % LOG_ENTRIES;
  u64* entry = t.log + 1 + 3 * at;
  entry[0] = t.constant; entry[1] = start; entry[2] = end; }""",
    "crowd": r"""
extern "C" __global__ void crowd(Task t) {
  begin();
  if (threadIdx.x == 0) {
    u32 unit; asm volatile("mov.u32 %0, %%smid;" : "=r"(unit));
    u32* count = (u32*)(t.log + 1 + 3 * LOG_ENTRIES) + unit % 1024u;
    atomicMax(t.stamp + 13, atomicAdd(count, 1u) + 1u);
    u64 start = now();
    for (u32 loops = 0; loops < 100000u && now() - start < 100000ull; ++loops) ;
    atomicSub(count, 1u);
  }
  stamp(t, NUMBER); }""",
    "heavy": r"""
extern "C" __global__ void heavy(Task t) {
  begin();
  for (u32 i = first(); i < t.words; i += stride()) {
    u32 held[96];
    #pragma unroll
    for (u32 k = 0; k < 96; ++k) held[k] = t.source[(i + k) % t.words] * (k + t.constant);
    u32 sum = 0;
    #pragma unroll
    for (u32 k = 0; k < 96; ++k) sum ^= __funnelshift_l(held[k], held[95 - k], held[(k * 37) % 96] & 31);
    #pragma unroll
    for (u32 k = 0; k < 96; ++k) sum -= held[k] & sum & t.words;
    t.target[i] = t.source[i] + t.constant + (sum == 0x12345678u && t.words == 0xFFFFFFFFu);
  }
  stamp(t, NUMBER); }""",
    "roomy": r"""
extern "C" __global__ void roomy(Task t) {
  begin();
  __shared__ u32 shelf[8192];
  u32 own = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  for (u32 i = first(); i < t.words; i += stride()) {
    u32 at = (own * 7u + 4096u) % 8192u;
    shelf[at] = t.source[i] + t.constant;
    t.target[i] = ((volatile u32*)shelf)[at];
  }
  stamp(t, NUMBER); }""",
    "paired": r"""
extern "C" __global__ void CLUSTER_OF_TWO paired(Task t) {
  begin();
  for (u32 i = first(); i < t.words; i += stride()) t.target[i] = t.source[i] + t.constant;
  stamp(t, NUMBER); }""",
}
_MODULES = (
    ("add", "multiply", "xor", "mix", "wide", "deep", "says", "interval", "crowd", "paired", "heavy", "roomy"),
    ("elsewhere",),
    ("late",),
)
_ENTRY = {"xor": "exclusive_or"}


class Functions:
    """Kernel functions of one device by name; each module is compiled, and loaded when one of its functions is needed.

    Raises:
        NotHere: NVRTC cannot be had, or does not compile for this device.
    """

    def __init__(self, driver: Any, compute_capability: tuple[int, int]) -> None:
        self._driver = driver
        self._arch = "sm_{}{}".format(*compute_capability)
        self._modules: dict[int, Any] = {}
        self._functions: dict[str, Any] = {}
        try:
            from cuda.bindings import nvrtc
        except ImportError as error:
            raise NotHere(f"cuda.bindings.nvrtc cannot be imported ({error})") from error
        self._nvrtc = nvrtc
        for name in (*_MODULES[0], *_MODULES[1]):  # what cannot be compiled shows at once
            self.get(name)

    def get(self, name: str) -> Any:
        """A ``CUfunction``."""
        if name not in self._functions:
            index = next(index for index, members in enumerate(_MODULES) if name in members)
            driver = self._driver
            if index not in self._modules:
                self._modules[index] = call(driver.cuModuleLoadData(self._compile(index)), "cuModuleLoadData")
            entry = _ENTRY.get(name, name).encode()
            function = call(driver.cuModuleGetFunction(self._modules[index], entry), "cuModuleGetFunction")
            if name == "wide":
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call(driver.cuFuncSetAttribute(function, attribute, WIDE_BYTES), "cuFuncSetAttribute")
            if name != "late":
                call(driver.cuFuncLoad(function), "cuFuncLoad")  # a load in the middle of a question changes the answer
            self._functions[name] = function
        return self._functions[name]

    def _compile(self, index: int) -> bytes:
        nvrtc = self._nvrtc
        kernels = [_PARTS[name].replace("NUMBER", str(FUNCTIONS.index(name))) for name in _MODULES[index]]
        head = f"#define DEEP_WORDS {DEEP_WORDS}u\n#define LOG_ENTRIES {LOG_ENTRIES}u\n"
        source = "\n".join([head, _SOURCE, *kernels]).encode()
        try:
            program = call(nvrtc.nvrtcCreateProgram(source, b"graphdedup_probe.cu", 0, [], []), "nvrtcCreateProgram")
        except Exception as error:  # the bindings raise what they like where libnvrtc is missing
            raise NotHere(f"NVRTC cannot be used: {error}") from error
        options = [f"--gpu-architecture={self._arch}".encode()]
        result = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(result[0]) != 0:
            size = call(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            raise NotHere(f"NVRTC does not compile for {self._arch}: {log.decode(errors='replace').strip()[:800]}")
        size = call(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        image: bytes = b" " * int(size)
        call(nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
        nvrtc.nvrtcDestroyProgram(program)
        return image

    def close(self) -> None:
        """Unload the modules."""
        for module in self._modules.values():
            self._driver.cuModuleUnload(module)
        self._modules.clear()
        self._functions.clear()
