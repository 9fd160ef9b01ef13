//! Recorded launches: a CUDA graph, submitted as a whole at the cost of one launch.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use tern_graph::BackendError;

use super::device::{Device, check};

type Result<T> = std::result::Result<T, BackendError>;

impl Device {
    /// Records what `submit` launches instead of running it.
    pub(crate) fn record(self: &Arc<Self>, submit: impl FnOnce() -> Result<()>) -> Result<Recording> {
        self.bind()?;
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and records nothing yet.
        check(unsafe { cu::cuStreamBeginCapture_v2(self.stream, mode) }, || "recording launches".into())?;
        let submitted = submit();
        let (mut graph, mut launches) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the recording was begun above, and is ended also if a launch failed.
        let ended = unsafe { cu::cuStreamEndCapture(self.stream, &raw mut graph) };
        submitted?;
        check(ended, || "recording launches".into())?;
        // SAFETY: the graph is complete; it is not needed once it is instantiated.
        let code = unsafe {
            let code = cu::cuGraphInstantiateWithFlags(&raw mut launches, graph, 0);
            cu::cuGraphDestroy(graph);
            code
        };
        check(code, || "preparing recorded launches".into())?;
        Ok(Recording { launches, device: Arc::clone(self) })
    }
}

/// Launches with their arguments.
pub(crate) struct Recording {
    launches: cu::CUgraphExec,
    device: Arc<Device>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Recording {}

impl Recording {
    /// Submits all launches. What their arguments point to must be alive.
    pub(crate) fn submit(&self) -> Result<()> {
        // SAFETY: both handles are alive.
        let code = unsafe { cu::cuGraphLaunch(self.launches, self.device.stream) };
        check(code, || "submitting recorded launches".into())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: it has one owner; the driver keeps what a submitted graph still needs.
        unsafe { cu::cuGraphExecDestroy(self.launches) };
    }
}
