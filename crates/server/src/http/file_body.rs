//! A file as the body of a response, read on blocking threads as fast as the client takes it.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::task::{JoinHandle, spawn_blocking};

/// Bytes that are read at once.
const CHUNK: u64 = 256 << 10;

/// The first `left` bytes of a file.
pub(crate) struct FileBody {
    left: u64,
    state: State,
}

enum State {
    Idle(File),
    Reading(JoinHandle<io::Result<(File, Vec<u8>)>>),
    End,
}

impl FileBody {
    pub(crate) fn new(file: File, bytes: u64) -> FileBody {
        FileBody { left: bytes, state: State::Idle(file) }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            self.state = match std::mem::replace(&mut self.state, State::End) {
                State::End => return Poll::Ready(None),
                State::Idle(_) if self.left == 0 => return Poll::Ready(None),
                State::Idle(mut file) => {
                    let most = self.left.min(CHUNK);
                    State::Reading(spawn_blocking(move || {
                        let mut bytes = Vec::with_capacity(most as usize);
                        (&mut file).take(most).read_to_end(&mut bytes)?;
                        Ok((file, bytes))
                    }))
                }
                State::Reading(mut reading) => {
                    let read = match Pin::new(&mut reading).poll(cx) {
                        Poll::Pending => {
                            self.state = State::Reading(reading);
                            return Poll::Pending;
                        }
                        Poll::Ready(read) => read.map_err(io::Error::other).and_then(|read| read),
                    };
                    let (file, bytes) = read?;
                    if bytes.is_empty() {
                        return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                    }
                    self.left -= bytes.len() as u64;
                    self.state = State::Idle(file);
                    return Poll::Ready(Some(Ok(Frame::data(bytes.into()))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
