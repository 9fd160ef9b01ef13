//! A client's socket: writes have a timeout, and unread input is drained on close so
//! that the response arrives.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// How long a client that was refused may pause while it sends the rest of its request.
const LINGER_PAUSE: Duration = Duration::from_secs(1);

/// A socket whose writes time out.
pub(crate) struct ClientIo {
    stream: TcpStream,
    limits: IoLimits,
    /// Runs while the client reads nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    state: Arc<SocketState>,
    lingering: Option<Linger>,
}

/// What a client may do with its socket.
#[derive(Clone, Copy)]
pub(crate) struct IoLimits {
    /// How long it may read nothing of a response.
    pub(crate) write_timeout: Duration,
    /// For how long, and for how many bytes, a connection is read after its shutdown: closing it with unread
    /// bytes would reset it, and the client would lose the response.
    pub(crate) linger: Duration,
    pub(crate) linger_bytes: usize,
}

/// A connection that is read after its shutdown.
struct Linger {
    until: Pin<Box<Sleep>>,
    /// Runs while the client sends nothing.
    pause: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl Linger {
    fn new(limits: &IoLimits) -> Linger {
        Linger {
            until: Box::pin(sleep(limits.linger)),
            pause: Box::pin(sleep(LINGER_PAUSE)),
            bytes_left: limits.linger_bytes,
        }
    }

    /// Discards what the client sends until it has closed its side, or a limit is reached.
    fn poll(&mut self, cx: &mut Context<'_>, stream: &mut TcpStream) -> Poll<()> {
        let mut discarded = [0; 16 << 10];
        while self.bytes_left > 0 && self.until.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut discarded);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.bytes_left = self.bytes_left.saturating_sub(buffer.filled().len());
                    self.pause.as_mut().reset(Instant::now() + LINGER_PAUSE);
                }
                Poll::Ready(_) => break,
                Poll::Pending => return self.pause.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }
}

/// State shared by a connection's socket and its requests.
#[derive(Default)]
pub(crate) struct SocketState {
    /// Number of reads that returned bytes.
    pub(crate) reads: AtomicU64,
    /// The client may be sending bytes that will not be read.
    pub(crate) unread_input: AtomicBool,
}

impl ClientIo {
    pub(crate) fn new(stream: TcpStream, limits: IoLimits) -> ClientIo {
        ClientIo { stream, limits, stalled: None, state: Arc::default(), lingering: None }
    }

    pub(crate) fn state(&self) -> Arc<SocketState> {
        Arc::clone(&self.state)
    }

    /// Fails a write if the client has read nothing for too long.
    fn limit_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limits.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "write timeout: the client does not read")))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.state.reads.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limit_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.limit_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.state.unread_input.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let linger = this.lingering.get_or_insert_with(|| Linger::new(&this.limits));
        linger.poll(cx, &mut this.stream).map(Ok)
    }
}
