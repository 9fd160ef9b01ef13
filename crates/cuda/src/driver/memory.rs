//! Memory: of the device, pinned on the host, and the events that say when copies are done.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use tern_graph::BackendError;

use super::device::{Device, check};

type Result<T> = std::result::Result<T, BackendError>;

impl Device {
    /// Allocates `bytes`, zeroed.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Memory> {
        self.bind()?;
        let (mut at, bytes) = (0, bytes.max(16));
        // SAFETY: the pointer is to a live integer.
        let code = unsafe { cu::cuMemAlloc_v2(&raw mut at, bytes) };
        if code != cu::CUresult::CUDA_SUCCESS {
            let free = self.memory().map_or(0, |m| m.0);
            let mib = |b: u64| b / (1 << 20);
            let (want, name) = (mib(bytes as u64), &self.facts.name);
            check(code, || format!("allocating {want} MiB on {name} with {} MiB free", mib(free)))?;
        }
        let memory = Memory { at, bytes, device: Arc::clone(self) };
        memory.clear()?;
        Ok(memory)
    }

    /// Copies bytes to the device, in stream order. They may be changed once this returns.
    ///
    /// # Safety
    ///
    /// The device has as many bytes at `to`.
    pub(crate) unsafe fn write_at(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: by the contract; a copy out of pageable memory has read it when it returns.
        let code = unsafe { cu::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.stream) };
        check(code, || format!("copying {} bytes to the GPU", bytes.len()))
    }

    /// Allocates memory and copies these bytes into it.
    pub(crate) fn upload(self: &Arc<Self>, bytes: &[u8]) -> Result<Memory> {
        let memory = self.allocate(bytes.len())?;
        memory.write(0, bytes)?;
        self.wait()?;
        Ok(memory)
    }
}

/// An allocation on the device.
pub(crate) struct Memory {
    at: cu::CUdeviceptr,
    bytes: usize,
    device: Arc<Device>,
}

impl Memory {
    /// Its address, for a kernel.
    pub(crate) fn pointer(&self) -> u64 {
        self.at
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Fills it with zeros, in stream order.
    pub(crate) fn clear(&self) -> Result<()> {
        // SAFETY: the range is what was allocated.
        let code = unsafe { cu::cuMemsetD8Async(self.at, 0, self.bytes, self.device.stream) };
        check(code, || "zeroing memory".into())
    }

    /// Copies bytes to the device, in stream order. They may be changed once this returns.
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

    /// Copies the first bytes of pinned memory to offset `to`, in stream order; they must not be changed
    /// before the copy is done.
    pub(crate) fn write_pinned(&self, to: usize, from: &Pinned, bytes: usize) -> Result<()> {
        let bytes = bytes.min(from.bytes);
        self.fits(to, bytes)?;
        // SAFETY: the range was checked, and pinned memory waits for the stream before it is freed.
        let code =
            unsafe { cu::cuMemcpyHtoDAsync_v2(self.at + to as u64, from.at, bytes, self.device.stream) };
        check(code, || format!("copying {bytes} bytes to the GPU"))
    }

    /// Copies the first bytes to pinned memory, in stream order.
    pub(crate) fn read_pinned(&self, to: &mut Pinned, bytes: usize) -> Result<()> {
        let bytes = bytes.min(to.bytes);
        self.fits(0, bytes)?;
        // SAFETY: as for `write_pinned`.
        let code = unsafe { cu::cuMemcpyDtoHAsync_v2(to.at, self.at, bytes, self.device.stream) };
        check(code, || format!("copying {bytes} bytes from the GPU"))
    }

    /// Copies what fits from the beginning of another memory, after the work that was submitted before.
    pub(crate) fn copy_from(&self, other: &Memory) -> Result<()> {
        let bytes = self.bytes.min(other.bytes);
        // SAFETY: both memories have that many bytes.
        let code = unsafe { cu::cuMemcpyDtoDAsync_v2(self.at, other.at, bytes, self.device.stream) };
        check(code, || format!("copying {bytes} bytes on the GPU"))
    }

    /// Waits for all submitted work and copies bytes to the host.
    pub(crate) fn read(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.fits(from, bytes.len())?;
        // SAFETY: the range was checked, and the copy is waited for before `bytes` is used.
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
            _ => Err(BackendError::Invalid(format!(
                "{len} bytes at {from}: outside an allocation of {} bytes on the GPU",
                self.bytes
            ))),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: the allocation has one owner; the driver waits for kernels that still use it.
        unsafe { cu::cuMemFree_v2(self.at) };
    }
}

/// Pinned host memory: the device copies from and to it asynchronously.
pub(crate) struct Pinned {
    at: *mut c_void,
    bytes: usize,
    device: Arc<Device>,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates `bytes`, zeroed.
    pub(crate) fn new(device: &Arc<Device>, bytes: usize) -> Result<Pinned> {
        device.bind()?;
        let (mut at, bytes) = (ptr::null_mut(), bytes.max(16));
        // SAFETY: the pointer is to a live pointer.
        check(unsafe { cu::cuMemHostAlloc(&raw mut at, bytes, 0) }, || {
            format!("allocating {bytes} bytes of pinned memory")
        })?;
        // SAFETY: it was just allocated.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Pinned { at, bytes, device: Arc::clone(device) })
    }

    /// The bytes. No copy from or to them may be in flight.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has this length and is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes) }
    }
}

impl Pinned {
    /// Copies bytes of the device to offset `to`, in stream order.
    ///
    /// # Safety
    ///
    /// The device has these bytes at `from`.
    pub(crate) unsafe fn copy_from(&mut self, to: usize, from: u64, bytes: usize) -> Result<()> {
        self.fits(to, bytes)?;
        // SAFETY: the range was checked, and pinned memory waits for the stream before it is freed.
        let code = unsafe { cu::cuMemcpyDtoHAsync_v2(self.at.byte_add(to), from, bytes, self.device.stream) };
        check(code, || format!("copying {bytes} bytes from the GPU"))
    }

    /// Copies the first bytes to the device, in stream order; they must not be changed
    /// before the copy is done.
    ///
    /// # Safety
    ///
    /// The device has these bytes at `to`.
    pub(crate) unsafe fn copy_to(&self, to: u64, bytes: usize) -> Result<()> {
        self.fits(0, bytes)?;
        // SAFETY: as for `copy_from`.
        let code = unsafe { cu::cuMemcpyHtoDAsync_v2(to, self.at, bytes, self.device.stream) };
        check(code, || format!("copying {bytes} bytes to the GPU"))
    }

    fn fits(&self, from: usize, len: usize) -> Result<()> {
        match from.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(BackendError::Invalid(format!(
                "{len} bytes at {from}: outside {} bytes of pinned memory",
                self.bytes
            ))),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: copies in flight are waited for, and the allocation has one owner.
        unsafe {
            cu::cuStreamSynchronize(self.device.stream);
            cu::cuMemFreeHost(self.at);
        }
    }
}

/// A point in the stream that the host can wait for.
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
        check(unsafe { cu::cuEventCreate(&raw mut event, flags) }, || "creating an event".into())?;
        Ok(Event { event, device: Arc::clone(device) })
    }

    /// Sets the event after all work submitted so far.
    pub(crate) fn record(&self) -> Result<()> {
        // SAFETY: both are alive.
        check(unsafe { cu::cuEventRecord(self.event, self.device.stream) }, || "recording an event".into())
    }

    /// Waits until that work is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the event is alive.
        check(unsafe { cu::cuEventSynchronize(self.event) }, || {
            format!("a step on {}", self.device.facts.name)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: the event has one owner.
        unsafe { cu::cuEventDestroy_v2(self.event) };
    }
}
