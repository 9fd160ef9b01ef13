//! The accept loop: connections get a slot, and are drained on shutdown.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::batch::BatchRoutes;
use crate::batches::Batches;
use crate::file_store::FileStore;
use crate::http::auth::Key;
use crate::http::connection;
use crate::http::connection_slots::ConnectionSlots;
use crate::http::hosts::Hosts;
use crate::models::registry::Registry;
use crate::state::{App, Loader, Stop};
use crate::{Config, KeepModels, Library, ServeError, routes};

/// How long requests that are ended by a drain may take to send their error.
const FINAL_GRACE: Duration = Duration::from_secs(1);
/// Connections beyond the limit that may request `/health` at once.
const HEALTH_ONLY: usize = 64;
/// Delay after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Interval of the search for idle models.
const SWEEP: Duration = Duration::from_millis(500);

/// An HTTP server for one model, or for the models of a library.
///
/// It can listen before the model is loaded: until [`Loader::ready`], every `/v1` route responds with 503.
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
        Server { app: Arc::new(App::new(config, Registry::one())) }
    }

    /// A server for the models of a library, each of which is loaded when it is first requested.
    pub fn of_library(config: Config, library: impl Library, keep: KeepModels) -> Server {
        Server { app: Arc::new(App::new(config, Registry::many(Arc::new(library), keep))) }
    }

    pub(crate) fn into_app(self) -> Arc<App> {
        self.app
    }

    /// The server with the files and batches of a folder.
    pub fn with_files(self, files: FileStore) -> io::Result<Server> {
        self.app.set_batches(Batches::open(Arc::new(files))?);
        Ok(self)
    }

    /// The loader, which may be used on any thread.
    pub fn loader(&self) -> Loader {
        Loader::new(Arc::clone(&self.app))
    }

    /// The routes for the lines of a batch.
    pub fn batch_routes(&self) -> BatchRoutes {
        BatchRoutes::new(&self.app, Key::NONE)
    }

    /// Serves until `shutdown` completes, lets running requests finish within
    /// [`Config::drain_timeout`], and ends the others.
    ///
    /// A model that cannot be loaded, or an engine that ends, also ends the server: requests are refused with
    /// the reason for [`Config::failure_grace`], and the reason is the error. A stuck engine does not,
    /// because it may recover.
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
                    tracing::error!(%why, "the server cannot continue");
                    if let ServeError::Engine(_) = why {
                        sleep(app.config.failure_grace).await;
                    }
                    Err(why)
                }
            }
        });
        if let Some(batches) = app.batches() {
            batches.resume(&app);
        }
        let slots = Arc::<ConnectionSlots>::default();
        let mut sweep = tokio::time::interval(SWEEP);
        let mut health_only = VecDeque::<AbortHandle>::new();
        let ended = loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                _ = sweep.tick() => {
                    app.registry.sweep();
                    if let Some(batches) = app.batches() {
                        batches.files.sweep();
                    }
                    continue;
                }
                ended = &mut end => break ended,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // tokens are small, and their latency matters
                    let _ = stream.set_nodelay(true);
                    let (app, router) = (Arc::clone(&app), router.clone());
                    match slots.take(peer.ip(), &app.config) {
                        Ok(slot) => {
                            connections.spawn(async move {
                                connection::serve(app, router, stream).await;
                                drop(slot);
                            });
                        }
                        Err(full) => {
                            health_only.push_back(
                                connections.spawn(connection::serve_health(app, router, stream, full)),
                            );
                            // the oldest is closed, so that /health can always be requested
                            if health_only.len() > HEALTH_ONLY
                                && let Some(oldest) = health_only.pop_front()
                            {
                                oldest.abort();
                            }
                        }
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // for example out of file descriptors: closing connections frees some
                    tracing::warn!(%error, "accepting a connection failed");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        };
        drop(listener);
        // after a failure no request is running
        let limit = if ended.is_ok() { app.config.drain_timeout } else { Duration::ZERO };
        drain(&app, connections, limit).await;
        ended
    }
}

async fn drain(app: &App, mut connections: JoinSet<()>, limit: Duration) {
    app.stop(Stop::Draining);
    tracing::info!(connections = connections.len(), limit_s = limit.as_secs_f64(), "draining");
    let mut all = async || {
        while connections.join_next().await.is_some() {}
        if let Some(batches) = app.batches() {
            batches.idle().await;
        }
    };
    if timeout(limit, all()).await.is_err() {
        app.stop(Stop::Now);
        if timeout(FINAL_GRACE, all()).await.is_err() {
            connections.shutdown().await;
        }
    }
}

/// Errors of a connection that was closed before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
