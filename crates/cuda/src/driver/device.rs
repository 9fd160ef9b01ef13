//! The CUDA driver: one device, its memory, its kernels. Every call is checked and every failure has words.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use tern_graph::BackendError;

use crate::shared::KernelArgs;

type Result<T> = std::result::Result<T, BackendError>;

/// Turns a driver's answer into a result; `doing` says what was asked of it.
fn check(code: cu::CUresult, doing: impl FnOnce() -> String) -> Result<()> {
    if code == cu::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut words = ptr::null();
    // SAFETY: the driver gives a static string, or leaves the pointer null.
    let words = unsafe {
        let _ = cu::cuGetErrorString(code, &raw mut words);
        if words.is_null() {
            format!("{code:?}")
        } else {
            CStr::from_ptr(words).to_string_lossy().into_owned()
        }
    };
    Err(kind(code)(format!("{}: {words}", doing())))
}

/// What an error of the driver means for what comes after it.
fn kind(code: cu::CUresult) -> fn(String) -> BackendError {
    use cu::CUresult as Code;
    match code {
        Code::CUDA_ERROR_OUT_OF_MEMORY => BackendError::OutOfMemory,
        // those after which, as the driver's manual says, the context cannot be used
        Code::CUDA_ERROR_ECC_UNCORRECTABLE
        | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | Code::CUDA_ERROR_ILLEGAL_ADDRESS
        | Code::CUDA_ERROR_LAUNCH_TIMEOUT
        | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | Code::CUDA_ERROR_ASSERT
        | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
        | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | Code::CUDA_ERROR_MISALIGNED_ADDRESS
        | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | Code::CUDA_ERROR_INVALID_PC
        | Code::CUDA_ERROR_LAUNCH_FAILED => BackendError::DeviceLost,
        _ => BackendError::Other,
    }
}

/// A GPU that is there, as the driver describes it.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// Its place among the devices.
    pub ordinal: usize,
    /// `NVIDIA H200`
    pub name: String,
    /// Compute capability: 9, 0.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub processors: usize,
    /// Bytes of shared memory that one block may have.
    pub shared_memory: usize,
    /// Bytes of memory.
    pub memory: u64,
}

/// What the driver says about itself and its devices, or why there is none.
pub fn devices() -> Result<(i32, Vec<DeviceFacts>)> {
    // SAFETY: looks for the library and opens nothing; without it no other call may be made.
    if !unsafe { cu::is_culib_present() } {
        return Err(BackendError::Unsupported("no NVIDIA driver: libcuda.so.1 was not found".into()));
    }
    let (mut version, mut count) = (0, 0);
    // SAFETY: the library is there; all pointers are to live integers.
    unsafe {
        check(cu::cuInit(0), || "the NVIDIA driver did not start".into())?;
        check(cu::cuDriverGetVersion(&raw mut version), || "the driver's version".into())?;
        check(cu::cuDeviceGetCount(&raw mut count), || "counting GPUs".into())?;
    }
    Ok((version, (0..count as usize).map(facts).collect::<Result<Vec<_>>>()?))
}

fn facts(ordinal: usize) -> Result<DeviceFacts> {
    use cu::CUdevice_attribute as Attribute;
    let (mut device, mut memory, mut name) = (0, 0, [0; 256]);
    // SAFETY: the driver is initialised; buffers are as long as said.
    unsafe {
        check(cu::cuDeviceGet(&raw mut device, ordinal as c_int), || format!("GPU {ordinal}"))?;
        check(cu::cuDeviceGetName(name.as_mut_ptr(), 255, device), || format!("the name of GPU {ordinal}"))?;
        check(cu::cuDeviceTotalMem_v2(&raw mut memory, device), || format!("the memory of GPU {ordinal}"))?;
    }
    let get = |attribute| {
        let mut value = 0;
        // SAFETY: as above.
        let code = unsafe { cu::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        check(code, || format!("{attribute:?} of GPU {ordinal}")).map(|()| value)
    };
    // SAFETY: the driver ends the name with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let major = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(DeviceFacts {
        ordinal,
        name,
        capability: (major, minor),
        processors: get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        shared_memory: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        memory: memory as u64,
    })
}

/// A device with its context and one stream, on which everything happens in order.
pub(crate) struct Device {
    /// What it is.
    pub(crate) facts: DeviceFacts,
    context: cu::CUcontext,
    stream: cu::CUstream,
}

// SAFETY: the driver's handles may be used from any thread; `bind` makes the context current where they are used.
unsafe impl Send for Device {}
// SAFETY: as above; the driver locks its own state.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Device>> {
        let (_, all) = devices()?;
        let count = all.len();
        let facts = all.into_iter().nth(ordinal);
        let facts = facts.ok_or_else(|| {
            BackendError::Unsupported(format!("there is no GPU {ordinal}: the driver has {count}"))
        })?;
        let (mut device, mut context, mut stream) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the driver is initialised; all pointers are to live values.
        unsafe {
            check(cu::cuDeviceGet(&raw mut device, ordinal as c_int), || format!("GPU {ordinal}"))?;
            let code = cu::cuDevicePrimaryCtxRetain(&raw mut context, device);
            check(code, || format!("a context on {}", facts.name))?;
            check(cu::cuCtxSetCurrent(context), || "the context".into())?;
            let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check(cu::cuStreamCreate(&raw mut stream, flags), || "a stream".into())?;
        }
        Ok(Arc::new(Device { facts, context, stream }))
    }

    /// Makes the context current on this thread.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        check(unsafe { cu::cuCtxSetCurrent(self.context) }, || "the context".into())
    }

    /// Bytes free and in all.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live integers.
        check(unsafe { cu::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, || "free memory".into())?;
        Ok((free as u64, total as u64))
    }

    /// Memory for `bytes`, zeroed.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Memory> {
        self.bind()?;
        let (mut at, bytes) = (0, bytes.max(16));
        // SAFETY: the pointer is to a live integer.
        let code = unsafe { cu::cuMemAlloc_v2(&raw mut at, bytes) };
        if code != cu::CUresult::CUDA_SUCCESS {
            let free = self.memory().map_or(0, |m| m.0);
            let mib = |b: u64| b / (1 << 20);
            let (want, name) = (mib(bytes as u64), &self.facts.name);
            return check(code, || format!("{want} MiB on {name}, of which {} MiB are free", mib(free)))
                .and_then(|()| Err(BackendError::OutOfMemory("out of memory".into())));
        }
        let memory = Memory { at, bytes, device: Arc::clone(self) };
        memory.clear()?;
        Ok(memory)
    }

    /// Memory with these bytes in it.
    pub(crate) fn upload(self: &Arc<Self>, bytes: &[u8]) -> Result<Memory> {
        let memory = self.allocate(bytes.len())?;
        memory.write(0, bytes)?;
        self.wait()?;
        Ok(memory)
    }

    /// Until everything asked for is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { cu::cuStreamSynchronize(self.stream) }, || format!("a step on {}", self.facts.name))
    }

    /// Machine code on the device; `name` is for messages.
    pub(crate) fn load(self: &Arc<Self>, code: &[u8], name: &str) -> Result<Module> {
        self.bind()?;
        let mut module = ptr::null_mut();
        // SAFETY: the code is a whole cubin, as NVRTC made it or the cache checked it.
        let loaded = unsafe { cu::cuModuleLoadData(&raw mut module, code.as_ptr().cast()) };
        check(loaded, || format!("{name}: loading"))?;
        Ok(Module { module, device: Arc::clone(self) })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.bind();
        // SAFETY: everything on the stream holds the device, so nothing uses it any more.
        unsafe {
            cu::cuStreamDestroy_v2(self.stream);
            cu::cuDevicePrimaryCtxRelease_v2(self.facts.ordinal as c_int);
        }
    }
}

/// Host memory that the device copies from and to by itself.
pub(crate) struct Pinned {
    at: *mut c_void,
    bytes: usize,
    device: Arc<Device>,
}

// SAFETY: it is memory; whoever has the value has it alone.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `bytes` of it, zeroed.
    pub(crate) fn new(device: &Arc<Device>, bytes: usize) -> Result<Pinned> {
        device.bind()?;
        let (mut at, bytes) = (ptr::null_mut(), bytes.max(16));
        // SAFETY: the pointer is to a live pointer.
        check(unsafe { cu::cuMemHostAlloc(&raw mut at, bytes, 0) }, || {
            format!("{bytes} bytes of pinned memory")
        })?;
        // SAFETY: it was just allocated.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Pinned { at, bytes, device: Arc::clone(device) })
    }

    /// The bytes. Nothing that the device was asked to do with them may be under way.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated so long, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: the device may still copy from it; afterwards nobody has it.
        unsafe {
            cu::cuStreamSynchronize(self.device.stream);
            cu::cuMemFreeHost(self.at);
        }
    }
}

/// A point in the stream that can be waited for.
pub(crate) struct Event {
    event: cu::CUevent,
    device: Arc<Device>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Event> {
        device.bind()?;
        let mut event = ptr::null_mut();
        let flags = cu::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the pointer is to a live handle.
        check(unsafe { cu::cuEventCreate(&raw mut event, flags) }, || "an event".into())?;
        Ok(Event { event, device: Arc::clone(device) })
    }

    /// Marks what has been asked for until now.
    pub(crate) fn record(&self) -> Result<()> {
        // SAFETY: both are alive.
        check(unsafe { cu::cuEventRecord(self.event, self.device.stream) }, || "an event".into())
    }

    /// Until all that is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: it is alive.
        check(unsafe { cu::cuEventSynchronize(self.event) }, || {
            format!("a step on {}", self.device.facts.name)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: nobody else has it.
        unsafe { cu::cuEventDestroy_v2(self.event) };
    }
}

/// A piece of the device's memory.
pub(crate) struct Memory {
    at: cu::CUdeviceptr,
    bytes: usize,
    device: Arc<Device>,
}

impl Memory {
    /// Where it begins, for a kernel.
    pub(crate) fn pointer(&self) -> u64 {
        self.at
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Makes it zeros, in order with everything else.
    pub(crate) fn clear(&self) -> Result<()> {
        // SAFETY: the range is what was allocated.
        let code = unsafe { cu::cuMemsetD8Async(self.at, 0, self.bytes, self.device.stream) };
        check(code, || "zeroing memory".into())
    }

    /// Copies bytes in, in order with everything else. They may be reused at once.
    pub(crate) fn write(&self, from: usize, bytes: &[u8]) -> Result<()> {
        self.fits(from, bytes.len())?;
        // SAFETY: the range was checked; a copy out of pageable memory has read it when it returns.
        let code = unsafe {
            cu::cuMemcpyHtoDAsync_v2(
                self.at + from as u64,
                bytes.as_ptr().cast(),
                bytes.len(),
                self.device.stream,
            )
        };
        check(code, || format!("copying {} bytes to the GPU", bytes.len()))
    }

    /// Copies the first bytes of pinned memory in, to `to` and after it, in order with everything else; it may not be
    /// changed until then.
    pub(crate) fn write_pinned(&self, to: usize, from: &Pinned, bytes: usize) -> Result<()> {
        let bytes = bytes.min(from.bytes);
        self.fits(to, bytes)?;
        // SAFETY: the range was checked, and pinned memory waits for the stream before it goes.
        let code =
            unsafe { cu::cuMemcpyHtoDAsync_v2(self.at + to as u64, from.at, bytes, self.device.stream) };
        check(code, || format!("copying {bytes} bytes to the GPU"))
    }

    /// Copies the first bytes out to pinned memory, in order with everything else.
    pub(crate) fn read_pinned(&self, to: &mut Pinned, bytes: usize) -> Result<()> {
        let bytes = bytes.min(to.bytes);
        self.fits(0, bytes)?;
        // SAFETY: as above.
        let code = unsafe { cu::cuMemcpyDtoHAsync_v2(to.at, self.at, bytes, self.device.stream) };
        check(code, || format!("copying {bytes} bytes from the GPU"))
    }

    /// Copies bytes out when everything before is done.
    pub(crate) fn read(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.fits(from, bytes.len())?;
        // SAFETY: the range was checked; the wait makes sure that the bytes are there.
        let code = unsafe {
            cu::cuMemcpyDtoHAsync_v2(
                bytes.as_mut_ptr().cast(),
                self.at + from as u64,
                bytes.len(),
                self.device.stream,
            )
        };
        check(code, || format!("copying {} bytes from the GPU", bytes.len()))?;
        self.device.wait()
    }

    fn fits(&self, from: usize, len: usize) -> Result<()> {
        match from.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(BackendError::Invalid(format!("bytes {from}..+{len} of {} on the GPU", self.bytes))),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: nobody else has the pointer; the driver waits for what still uses it.
        unsafe { cu::cuMemFree_v2(self.at) };
    }
}

/// Machine code on the device, which stays there as long as the context does.
pub(crate) struct Module {
    module: cu::CUmodule,
    device: Arc<Device>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Module {}

impl Module {
    /// One of its kernels.
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel> {
        self.device.bind()?;
        let mut function = ptr::null_mut();
        let title = CString::new(name).map_err(|e| BackendError::Invalid(e.to_string()))?;
        // SAFETY: the module is loaded, and the title ends with a zero.
        let found = unsafe { cu::cuModuleGetFunction(&raw mut function, self.module, title.as_ptr()) };
        check(found, || format!("{name}: not in its module"))?;
        Ok(Kernel { name: name.into(), function, device: Arc::clone(&self.device) })
    }
}

/// A kernel, ready to be launched.
pub(crate) struct Kernel {
    name: String,
    function: cu::CUfunction,
    device: Arc<Device>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Lets its blocks have up to `bytes` of shared memory.
    pub(crate) fn with_shared_memory(self, bytes: usize) -> Result<Kernel> {
        let most = cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is alive.
        let code = unsafe { cu::cuFuncSetAttribute(self.function, most, bytes as c_int) };
        check(code, || format!("{}: {bytes} bytes of shared memory", self.name))?;
        Ok(self)
    }

    /// Launches blocks with these arguments.
    ///
    /// # Safety
    ///
    /// `args` must be the kernel's only parameter, its addresses good for what the kernel does with them, and the grid one
    /// that the kernel is written for.
    pub(crate) unsafe fn launch<A: KernelArgs>(&self, grid: Grid, args: &A) -> Result<()> {
        let Grid { x, y, threads, shared } = grid;
        let mut params = [ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let (params, none, stream) = (params.as_mut_ptr(), ptr::null_mut(), self.device.stream);
        let (x, y, threads, shared) = (x as u32, y as u32, threads as u32, shared as u32);
        // SAFETY: the driver copies the arguments before it returns; the rest is this function's contract.
        let code = unsafe {
            cu::cuLaunchKernel(self.function, x, y, 1, threads, 1, 1, shared, stream, params, none)
        };
        check(code, || format!("{}: launching {x} x {y} blocks of {threads}", self.name))
    }

    /// As [`Self::launch`], for blocks that wait for each other: all run at the same time, or the launch fails.
    ///
    /// # Safety
    ///
    /// As for [`Self::launch`].
    pub(crate) unsafe fn launch_together<A: KernelArgs>(&self, grid: Grid, args: &A) -> Result<()> {
        let Grid { x, y, threads, shared } = grid;
        let mut params = [ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let (params, stream) = (params.as_mut_ptr(), self.device.stream);
        let (x, y, threads, shared) = (x as u32, y as u32, threads as u32, shared as u32);
        // SAFETY: as for `launch`.
        let code = unsafe {
            cu::cuLaunchCooperativeKernel(self.function, x, y, 1, threads, 1, 1, shared, stream, params)
        };
        check(code, || format!("{}: launching {x} x {y} blocks of {threads} together", self.name))
    }
}

/// The size of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Blocks, in two dimensions.
    pub(crate) x: usize,
    pub(crate) y: usize,
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared: usize,
}

impl Grid {
    /// Without dynamic shared memory.
    pub(crate) fn new(x: usize, y: usize, threads: usize) -> Grid {
        Grid { x, y, threads, shared: 0 }
    }
}
