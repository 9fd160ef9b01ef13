//! Requests that run, and how Python waits for them: blocking, or by a callback.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tern_server::InProcess;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::engine::Engine;

/// Pieces that wait for Python.
const QUEUE: usize = 64;
/// Interval in which a thread that waits handles signals.
const TICK: Duration = Duration::from_millis(100);

/// What a task sends. Dropping it ends the task.
struct Running<T> {
    handle: Handle,
    pieces: Mutex<Receiver<T>>,
    task: AbortHandle,
}

impl<T: Send + 'static> Running<T> {
    fn start<F>(handle: Handle, task: impl FnOnce(Sender<T>) -> F) -> Running<T>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, pieces) = channel(QUEUE);
        let task = handle.spawn(task(sender)).abort_handle();
        Running { handle, pieces: Mutex::new(pieces), task }
    }

    /// Waits for the next piece; none after the last. Signals are handled meanwhile.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<T>> {
        loop {
            let next = py.detach(|| {
                let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
                self.handle.block_on(async { timeout(TICK, pieces.recv()).await })
            });
            match next {
                Ok(piece) => return Ok(piece),
                Err(_) => py.check_signals()?,
            }
        }
    }

    /// The next piece if it has arrived. Otherwise `wake` is called once when it may have, on another thread.
    fn poll(&self, py: Python<'_>, wake: Py<PyAny>) -> Poll<Option<T>> {
        let waker =
            Waker::from(Arc::new(Callback { wake: Mutex::new(Some(wake)), handle: self.handle.clone() }));
        py.detach(|| {
            let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
            pieces.poll_recv(&mut Context::from_waker(&waker))
        })
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Calls a Python function once.
struct Callback {
    wake: Mutex<Option<Py<PyAny>>>,
    handle: Handle,
}

impl Wake for Callback {
    fn wake(self: Arc<Self>) {
        let Some(wake) = self.wake.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        // the thread that wakes may be the engine's, which must not wait for the interpreter
        self.handle.spawn_blocking(move || {
            // none while the interpreter ends
            Python::try_attach(|py| {
                if let Err(error) = wake.call0(py) {
                    error.write_unraisable(py, None);
                }
            });
        });
    }
}

/// A piece of a response.
enum Piece {
    Head(Head),
    Body(Vec<u8>),
}

/// The head of a response.
#[derive(Clone, Default)]
struct Head {
    status: u16,
    content_type: String,
    headers: Vec<(String, String)>,
}

/// A request that runs, and its response. Dropping it cancels the request.
#[pyclass(frozen, module = "tern_llm._native")]
pub(crate) struct Reply {
    running: Running<Piece>,
    head: Mutex<Head>,
    /// It ends when the last of its requests is dropped.
    _engine: Py<Engine>,
}

impl Reply {
    pub(crate) fn start(
        engine: Py<Engine>,
        handle: Handle,
        routes: Arc<InProcess>,
        method: String,
        path: String,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    ) -> Reply {
        let running = Running::start(handle, |pieces| async move {
            let mut reply = routes.request(&method, &path, headers, body).await;
            let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            let head = Head {
                status: reply.status(),
                content_type: reply.content_type().to_owned(),
                headers: reply.headers().map(text).collect(),
            };
            if pieces.send(Piece::Head(head)).await.is_err() {
                return;
            }
            while let Some(bytes) = reply.next().await {
                if pieces.send(Piece::Body(bytes.into())).await.is_err() {
                    return;
                }
            }
        });
        Reply { running, head: Mutex::default(), _engine: engine }
    }

    /// Remembers the head, which Python sees as an empty piece.
    fn taken<'py>(&self, py: Python<'py>, piece: Piece) -> Bound<'py, PyBytes> {
        match piece {
            Piece::Head(head) => {
                *self.head.lock().unwrap_or_else(PoisonError::into_inner) = head;
                PyBytes::new(py, b"")
            }
            Piece::Body(bytes) => PyBytes::new(py, &bytes),
        }
    }

    fn head(&self) -> Head {
        self.head.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[pymethods]
impl Reply {
    /// Waits for the next piece of the body. The first is empty: with it, the head is known. None is the end.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.running.wait(py)?.map(|piece| self.taken(py, piece)))
    }

    /// The next piece if it has arrived, as `wait` returns it. If not, `...`, and another thread calls
    /// `wake` once when it may have.
    fn poll<'py>(&self, py: Python<'py>, wake: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.running.poll(py, wake) {
            Poll::Pending => Ok(py.Ellipsis().into_bound(py)),
            Poll::Ready(None) => Ok(py.None().into_bound(py)),
            Poll::Ready(Some(piece)) => Ok(self.taken(py, piece).into_any()),
        }
    }

    /// Cancels the request.
    fn cancel(&self) {
        self.running.task.abort();
    }

    /// The status code; 0 until the first piece.
    #[getter]
    fn status(&self) -> u16 {
        self.head().status
    }

    /// The type of the body.
    #[getter]
    fn content_type(&self) -> String {
        self.head().content_type
    }

    /// The headers of the response.
    #[getter]
    fn headers(&self) -> Vec<(String, String)> {
        self.head().headers
    }
}

/// A whole response: the index of its body, its status and its bytes.
type Whole = (usize, u16, Vec<u8>);

/// Requests that run beside each other, and their whole responses in the order in which they end. Dropping it
/// cancels those that have not ended.
#[pyclass(frozen, module = "tern_llm._native")]
pub(crate) struct Replies {
    running: Running<Whole>,
    /// As that of a reply.
    _engine: Py<Engine>,
}

impl Replies {
    /// Answers these requests, `at_once` of them at a time.
    pub(crate) fn start<R, F>(
        engine: Py<Engine>,
        handle: Handle,
        requests: Vec<R>,
        at_once: usize,
        answer: impl Fn(R) -> F + Send + 'static,
    ) -> Replies
    where
        R: Send + 'static,
        F: Future<Output = (u16, Vec<u8>)> + Send + 'static,
    {
        let running = Running::start(handle, |wholes| async move {
            let mut set = JoinSet::<Whole>::new(); // dropped with this task, and its tasks with it
            let mut requests = requests.into_iter().enumerate();
            loop {
                while set.len() < at_once.max(1)
                    && let Some((index, request)) = requests.next()
                {
                    let answer = answer(request);
                    set.spawn(async move {
                        let (status, body) = answer.await;
                        (index, status, body)
                    });
                }
                match set.join_next().await {
                    Some(Ok(whole)) => {
                        if wholes.send(whole).await.is_err() {
                            return;
                        }
                    }
                    Some(Err(_)) => {} // a panic, which Python sees as a response that is missing
                    None => return,
                }
            }
        });
        Replies { running, _engine: engine }
    }
}

fn object<'py>(py: Python<'py>, whole: Whole) -> PyResult<Bound<'py, PyAny>> {
    let (index, status, body) = whole;
    Ok((index, status, PyBytes::new(py, &body)).into_pyobject(py)?.into_any())
}

#[pymethods]
impl Replies {
    /// Waits for the next response: its index, its status and its body. None is the end.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.running.wait(py)?.map(|whole| object(py, whole)).transpose()
    }

    /// As `Reply.poll`.
    fn poll<'py>(&self, py: Python<'py>, wake: Py<PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.running.poll(py, wake) {
            Poll::Pending => Ok(py.Ellipsis().into_bound(py)),
            Poll::Ready(None) => Ok(py.None().into_bound(py)),
            Poll::Ready(Some(whole)) => object(py, whole),
        }
    }

    /// Cancels the requests that have not ended.
    fn cancel(&self) {
        self.running.task.abort();
    }
}
