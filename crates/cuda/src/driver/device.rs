//! The CUDA driver: which devices there are, and one device with its context and
//! stream. Every call is checked.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use tern_graph::BackendError;

use crate::arithmetic::Arithmetic;

type Result<T> = std::result::Result<T, BackendError>;

/// Turns the driver's return code into a result; `doing` names the call in the message.
pub(super) fn check(code: cu::CUresult, doing: impl FnOnce() -> String) -> Result<()> {
    if code == cu::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut message = ptr::null();
    // SAFETY: the driver gives a static string, or leaves the pointer null.
    let message = unsafe {
        let _ = cu::cuGetErrorString(code, &raw mut message);
        if message.is_null() {
            format!("{code:?}")
        } else {
            CStr::from_ptr(message).to_string_lossy().into_owned()
        }
    };
    Err(kind(code)(format!("{}: {message}", doing())))
}

/// The kind of backend error that a driver error is.
fn kind(code: cu::CUresult) -> fn(String) -> BackendError {
    use cu::CUresult as Code;
    match code {
        Code::CUDA_ERROR_OUT_OF_MEMORY => BackendError::OutOfMemory,
        // the driver's manual: after these the context cannot be used
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

/// The oldest GPUs that have what kernels use: asynchronous copies and barriers in shared memory.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// A GPU, as the driver describes it.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// Its index among the devices.
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

/// The version of the driver and its devices, or why there are none.
pub fn devices() -> Result<(i32, Vec<DeviceFacts>)> {
    // SAFETY: it looks for the library and calls nothing; no other call is made if the library is missing.
    if !unsafe { cu::is_culib_present() } {
        return Err(BackendError::Unsupported("no NVIDIA driver: libcuda.so.1 was not found".into()));
    }
    let (mut version, mut count) = (0, 0);
    // SAFETY: the library is present; all pointers are to live integers.
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
    // SAFETY: the driver is initialised; buffers have the lengths that are passed.
    unsafe {
        check(cu::cuDeviceGet(&raw mut device, ordinal as c_int), || format!("GPU {ordinal}"))?;
        check(cu::cuDeviceGetName(name.as_mut_ptr(), 255, device), || format!("the name of GPU {ordinal}"))?;
        check(cu::cuDeviceTotalMem_v2(&raw mut memory, device), || format!("the memory of GPU {ordinal}"))?;
    }
    let get = |attribute| {
        let mut value = 0;
        // SAFETY: the driver is initialised, and the pointer is to a live integer.
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

/// A device with its context and one stream, on which all work runs in order.
pub(crate) struct Device {
    pub(crate) facts: DeviceFacts,
    pub(crate) arithmetic: Arithmetic,
    context: cu::CUcontext,
    pub(super) stream: cu::CUstream,
}

// SAFETY: the driver's handles may be used from any thread; `bind` makes the context
// current where they are used.
unsafe impl Send for Device {}
// SAFETY: as above; the driver locks its own state.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device.
    pub(crate) fn open(ordinal: usize, arithmetic: Arithmetic) -> Result<Arc<Device>> {
        let (_, all) = devices()?;
        let count = all.len();
        let facts = all.into_iter().nth(ordinal);
        let facts = facts.ok_or_else(|| {
            BackendError::Unsupported(format!("GPU {ordinal}: not found, the driver lists {count}"))
        })?;
        let (major, minor) = facts.capability;
        if facts.capability < LEAST_CAPABILITY {
            let (name, (least, _)) = (&facts.name, LEAST_CAPABILITY);
            return Err(BackendError::Unsupported(format!(
                "{name}: compute capability {major}.{minor}, {least}.0 or later is required"
            )));
        }
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
        Ok(Arc::new(Device { facts, arithmetic, context, stream }))
    }

    /// Makes the context current on this thread.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        check(unsafe { cu::cuCtxSetCurrent(self.context) }, || "the context".into())
    }

    /// Free bytes and total bytes.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live integers.
        check(unsafe { cu::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, || "free memory".into())?;
        Ok((free as u64, total as u64))
    }

    /// Waits until all submitted work is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { cu::cuStreamSynchronize(self.stream) }, || format!("a step on {}", self.facts.name))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.bind();
        // SAFETY: all users of the stream hold the device, so none is left.
        unsafe {
            cu::cuStreamDestroy_v2(self.stream);
            cu::cuDevicePrimaryCtxRelease_v2(self.facts.ordinal as c_int);
        }
    }
}
