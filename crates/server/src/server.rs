//! Connections: accepted, served, and on shutdown drained.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Config;
use crate::routes;
use crate::state::{App, Loader, Stop};

/// How long requests that are ended at the end of a drain have to say so.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long to wait when the system gives no more connections.
const PAUSE: Duration = Duration::from_millis(100);

/// An HTTP server of one model.
///
/// It can listen before the model is there: until [`Loader::ready`], every `/v1` route answers 503.
///
/// ```no_run
/// # async fn example(model: tern_server::Model) -> std::io::Result<()> {
/// use tern_server::{Config, Server};
///
/// let server = Server::new(Config::default());
/// server.loader().ready(model);
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// server.serve(listener, std::future::pending()).await
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
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> io::Result<()> {
        let app = self.app;
        let router = routes::router(&app);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let seats = Arc::new(Semaphore::new(app.config.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        loop {
            let accept = async {
                let seat = Arc::clone(&seats).acquire_owned().await;
                (listener.accept().await, seat)
            };
            let (accepted, seat) = tokio::select! {
                accepted = accept => accepted,
                Some(_) = connections.join_next() => continue,
                () = &mut shutdown => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let connection = connection(Arc::clone(&app), router.clone(), stream);
                    connections.spawn(async move {
                        connection.await;
                        drop(seat);
                    });
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // out of descriptors, for example: others may give some back
                    tracing::warn!(%error, "no connection could be accepted");
                    sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        drain(&app, connections).await;
        Ok(())
    }
}

/// One connection, until its client leaves, or until its last answer when the server drains.
async fn connection(app: Arc<App>, router: Router, stream: TcpStream) {
    // tokens are small and late ones are noticed
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(app.config.read_timeout);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let mut stop = std::pin::pin!(app.stopped(Stop::Draining));
    let mut told = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            () = stop.as_mut(), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn drain(app: &App, mut connections: JoinSet<()>) {
    app.stop(Stop::Draining);
    let limit = app.config.drain_timeout;
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
