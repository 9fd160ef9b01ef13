//! Logging of a server: lines on stderr and, if configured, spans to an OpenTelemetry collector.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::args::{LogArgs, LogFormat};
use crate::error::{CliError, CliResult};

/// Timeout of one batch of spans.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Exports spans; dropping it sends the last ones.
pub(crate) struct Tracing(Option<SdkTracerProvider>);

impl Drop for Tracing {
    fn drop(&mut self) {
        if let Some(Err(e)) = self.0.as_ref().map(SdkTracerProvider::shutdown) {
            eprintln!("tern: sending the last spans failed: {e}");
        }
    }
}

/// Starts logging and tracing for the whole process.
pub(crate) fn start(args: &LogArgs) -> CliResult<Tracing> {
    let ours =
        Targets::new().with_target("tern", args.log.level()).with_target("tern_server", args.log.level());
    let ours = ours.with_default(args.log.level().min(LevelFilter::WARN));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let lines = match args.log_format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let provider = args.otlp_endpoint.as_deref().map(provider).transpose()?;
    let spans = provider.as_ref().map(|provider| {
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("tern"));
        spans.with_filter(Targets::new().with_target("tern_server", LevelFilter::INFO))
    });
    tracing_subscriber::registry()
        .with(lines.with_filter(ours))
        .with(spans)
        .try_init()
        .map_err(|e| CliError::message(format!("cannot start logging: {e}")))?;
    Ok(Tracing(provider))
}

/// Sends spans in batches, as protobuf over HTTP, to a collector such as `http://localhost:4318`.
fn provider(endpoint: &str) -> CliResult<SdkTracerProvider> {
    let failed = |e: &dyn std::fmt::Display| CliError::message(format!("--otlp-endpoint {endpoint}: {e}"));
    let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(failed(&"expected a URL that starts with http:// or https://"));
    }
    let config =
        ureq::Agent::config_builder().timeout_global(Some(EXPORT_TIMEOUT)).http_status_as_error(false);
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client(config.build().into()))
        .with_endpoint(url)
        .build()
        .map_err(|e| failed(&e))?;
    let resource = Resource::builder().with_service_name("tern").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// An HTTP client that blocks the exporter's thread.
#[derive(Debug)]
struct Client(ureq::Agent);

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(parts, body.to_vec()))?;
        let (parts, mut body) = answer.into_parts();
        Ok(Response::from_parts(parts, body.read_to_vec()?.into()))
    }
}
