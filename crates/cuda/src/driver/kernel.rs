//! Kernels: machine code loaded on the device, and its launches.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use tern_graph::BackendError;

use super::device::{Device, check};
use crate::shared::KernelArgs;

type Result<T> = std::result::Result<T, BackendError>;

impl Device {
    /// Loads machine code; `name` is for messages.
    pub(crate) fn load(self: &Arc<Self>, code: &[u8], name: &str) -> Result<Module> {
        self.bind()?;
        let mut module = ptr::null_mut();
        // SAFETY: the code is a complete cubin: from NVRTC, or from the cache with its hash checked.
        let loaded = unsafe { cu::cuModuleLoadData(&raw mut module, code.as_ptr().cast()) };
        check(loaded, || format!("{name}: loading"))?;
        Ok(Module { module, device: Arc::clone(self) })
    }
}

/// Machine code on the device; it stays loaded as long as the context lives.
pub(crate) struct Module {
    module: cu::CUmodule,
    device: Arc<Device>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Module {}

impl Module {
    /// The kernel of this name.
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
    /// Allows its blocks up to `bytes` of dynamic shared memory.
    pub(crate) fn with_shared_memory(self, bytes: usize) -> Result<Kernel> {
        let most = cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is alive.
        let code = unsafe { cu::cuFuncSetAttribute(self.function, most, bytes as c_int) };
        check(code, || format!("{}: {bytes} bytes of shared memory", self.name))?;
        Ok(self)
    }

    /// Launches blocks with these arguments. A block may begin before earlier launches are done (from compute
    /// capability 9.0 on): the kernel waits for them itself.
    ///
    /// # Safety
    ///
    /// `args` must be the kernel's only parameter, its addresses good for what the kernel does with them, and
    /// the grid one that the kernel is written for.
    pub(crate) unsafe fn launch<A: KernelArgs>(&self, grid: Grid, args: &A) -> Result<()> {
        let Grid { x, y, threads, shared, cluster } = grid;
        let mut params = [ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let mut attributes = [cluster_of(cluster), overlapping()];
        let used = if self.device.facts.capability >= (9, 0) { &mut attributes[..] } else { &mut [] };
        let used = if cluster > 1 { used } else { used.get_mut(1..).unwrap_or_default() };
        let config = cu::CUlaunchConfig {
            gridDimX: x as u32,
            gridDimY: y as u32,
            gridDimZ: 1,
            blockDimX: threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared as u32,
            hStream: self.device.stream,
            attrs: used.as_mut_ptr(),
            numAttrs: used.len() as u32,
        };
        // SAFETY: the driver copies the arguments before it returns; the rest is this function's contract.
        let code = unsafe {
            cu::cuLaunchKernelEx(&raw const config, self.function, params.as_mut_ptr(), ptr::null_mut())
        };
        check(code, || format!("{}: launching {x} x {y} blocks of {threads}", self.name))
    }

    /// As [`Self::launch`], for blocks that wait for each other: all run at the same
    /// time, or the launch fails.
    ///
    /// # Safety
    ///
    /// As for [`Self::launch`].
    pub(crate) unsafe fn launch_together<A: KernelArgs>(&self, grid: Grid, args: &A) -> Result<()> {
        let Grid { x, y, threads, shared, .. } = grid;
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

/// Blocks of `size` run on neighbouring multiprocessors and read each other's shared memory.
fn cluster_of(size: usize) -> cu::CUlaunchAttribute {
    let dim = cu::CUlaunchAttributeValue_union__bindgen_ty_1 { x: size as u32, y: 1, z: 1 };
    attribute(
        cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        cu::CUlaunchAttributeValue { clusterDim: dim },
    )
}

/// The launch may begin while earlier ones run.
fn overlapping() -> cu::CUlaunchAttribute {
    let allowed = cu::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
    attribute(cu::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, allowed)
}

fn attribute(id: cu::CUlaunchAttributeID, value: cu::CUlaunchAttributeValue) -> cu::CUlaunchAttribute {
    cu::CUlaunchAttribute { id, pad: [0; 4], value }
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
    /// Blocks of a cluster; 1 for none.
    pub(crate) cluster: usize,
}

impl Grid {
    /// Without dynamic shared memory and clusters.
    pub(crate) fn new(x: usize, y: usize, threads: usize) -> Grid {
        Grid { x, y, threads, shared: 0, cluster: 1 }
    }
}
