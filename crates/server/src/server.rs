//! Listening: connections are accepted, given a seat, and on shutdown drained.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::hosts::Hosts;
use crate::seats::Seats;
use crate::state::{App, Loader, Stop};
use crate::{Config, ServeError, connection, routes};

/// How long requests that are ended at the end of a drain have to say so.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Connections without a seat that may ask for `/health` at once.
const SPARE: usize = 64;
/// How long to wait when the system gives no more connections.
const PAUSE: Duration = Duration::from_millis(100);

/// An HTTP server of one model.
///
/// It can listen before the model is there: until [`Loader::ready`], every `/v1` route answers 503.
///
/// ```no_run
/// # async fn example(model: tern_server::ServedModel) -> Result<(), Box<dyn std::error::Error>> {
/// use tern_server::{Config, Server};
///
/// let server = Server::new(Config::default());
/// server.loader().ready(model);
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// server.serve(listener, std::future::pending()).await?;
/// # Ok(())
/// # }
/// ```
pub struct Server {
    app: Arc<App>,
}

impl Server {
    /// A server without a model.
    pub fn new(config: Config) -> Server {
        Server { app: Arc::new(App::new(config)) }
    }

    /// What brings the model in, from wherever it is loaded.
    pub fn loader(&self) -> Loader {
        Loader::new(Arc::clone(&self.app))
    }

    /// Serves until `shutdown` is over, lets what runs finish within [`Config::drain_timeout`], and ends the rest.
    ///
    /// A model that cannot be loaded, or an engine that ends, is the end of the server as well: clients are told for
    /// [`Config::failure_grace`], and the reason is the error. An engine that is stuck is not, because it may go on.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let app = self.app;
        let address = listener.local_addr().ok().map(|address| address.ip());
        let router = routes::router(&app, Hosts::new(&app.config, address));
        let mut connections = JoinSet::new();
        let mut end = std::pin::pin!(async {
            tokio::select! {
                () = shutdown => Ok(()),
                why = app.failure() => {
                    tracing::error!(%why, "nothing can be served any more");
                    if let ServeError::Engine(_) = why {
                        sleep(app.config.failure_grace).await;
                    }
                    Err(why)
                }
            }
        });
        let seats = Arc::<Seats>::default();
        let mut spare = VecDeque::<AbortHandle>::new();
        let ended = loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                ended = &mut end => break ended,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // tokens are small and late ones are noticed
                    let _ = stream.set_nodelay(true);
                    let (app, router) = (Arc::clone(&app), router.clone());
                    match seats.take(peer.ip(), &app.config) {
                        Ok(seat) => {
                            connections.spawn(async move {
                                connection::serve(app, router, stream).await;
                                drop(seat);
                            });
                        }
                        Err(full) => {
                            spare.push_back(
                                connections.spawn(connection::serve_health(app, router, stream, full)),
                            );
                            // the oldest makes room, so that whoever asks for /health always gets in
                            if spare.len() > SPARE
                                && let Some(oldest) = spare.pop_front()
                            {
                                oldest.abort();
                            }
                        }
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // out of descriptors, for example: others may give some back
                    tracing::warn!(%error, "no connection could be accepted");
                    sleep(PAUSE).await;
                }
            }
        };
        drop(listener);
        // nothing runs any more after a failure
        let limit = if ended.is_ok() { app.config.drain_timeout } else { Duration::ZERO };
        drain(&app, connections, limit).await;
        ended
    }
}

async fn drain(app: &App, mut connections: JoinSet<()>, limit: Duration) {
    app.stop(Stop::Draining);
    tracing::info!(connections = connections.len(), limit_s = limit.as_secs_f64(), "draining");
    let mut all = async || while connections.join_next().await.is_some() {};
    if timeout(limit, all()).await.is_err() {
        app.stop(Stop::Now);
        if timeout(LAST_WORDS, all()).await.is_err() {
            connections.shutdown().await;
        }
    }
}

/// Errors of a connection that was gone before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
