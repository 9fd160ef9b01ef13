//! The chat page: its files as they are in `ui`, which may connect only to this server.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::{Path, RawQuery};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::http::error::ApiError;

/// A file below `/page/`.
struct Asset {
    path: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($path:literal)*) => {
        &[$(Asset { path: $path, bytes: include_bytes!(concat!("../../ui/", $path)) }),*]
    };
}

/// All files of the page but `index.html`.
const ASSETS: &[Asset] = assets! {
    "answer.js" "api.js" "app.js" "attachments.js" "chat.js" "composer.js" "dom.js" "file_chip.js"
    "highlight.js" "icon.svg" "language.js" "languages/de.js" "languages/en.js" "languages/es.js"
    "languages/fr.js" "languages/ja.js" "languages/pt.js" "languages/zh.js" "main.js" "markdown/blocks.js"
    "markdown/code.js" "markdown/inline.js" "markdown/math.js" "markdown/view.js" "markdown_import.js" "mcp.js" "memory.js"
    "messages.js" "models.js" "other_exports.js" "panel.js" "parameters.js" "pdf.js" "pdf_objects.js" "queue.js"
    "settings.js" "share.js" "shortcuts.js" "sidebar.js" "store.js" "style/base.css" "style/composer.css"
    "style/dialogs.css" "style/messages.css" "style/sidebar.css" "theme.js" "thread.js" "tools.js"
    "transfer.js" "tree.js" "vendor/Temml.woff2" "vendor/temml-license.txt" "vendor/temml.css"
    "vendor/temml.min.js"
};

const INDEX: &str = include_str!("../../ui/index.html");

/// Identifies the files of this build: it is part of their addresses, so that a browser keeps them until they
/// change, and a newer server never mixes its files with those of an older page.
static DIGEST: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for asset in ASSETS {
        hash.update(asset.path);
        hash.update(asset.bytes);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
});

/// `index.html` with the addresses of this build.
static PAGE: LazyLock<String> = LazyLock::new(|| INDEX.replace("\"page/", &format!("\"page/{}/", *DIGEST)));

/// Origins beyond its own that a page may be allowed to connect to.
const MAX_ORIGINS: usize = 4;

/// The page. `connect=ORIGIN` in its query permits connections to this origin, for an MCP server that its
/// reader has named: the page itself asks before it connects.
pub(super) async fn page(RawQuery(query): RawQuery) -> Response {
    let origins = origins(query.as_deref().unwrap_or_default());
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{origins}; \
         img-src 'self' data: blob:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = respond(PAGE.as_bytes(), "text/html; charset=utf-8", "no-cache");
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// A file of the page, at an address of this build.
pub(super) async fn asset(Path(path): Path<String>) -> Response {
    let own = path.strip_prefix(DIGEST.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let Some(asset) = own.and_then(|path| ASSETS.iter().find(|asset| asset.path == path)) else {
        let message = format!("unknown file of the page: {path}; reload the page");
        return ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_page_file").into_response();
    };
    let kind = match asset.path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        _ => "text/plain; charset=utf-8",
    };
    respond(asset.bytes, kind, "private, max-age=31536000, immutable")
}

fn respond(bytes: &'static [u8], kind: &'static str, cache: &'static str) -> Response {
    let mut response = Response::new(Body::from(bytes));
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, cache),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The origins that a query names, each after a space; what is not the plain origin of a host is omitted.
fn origins(query: &str) -> String {
    let named = query.split('&').filter_map(|pair| pair.strip_prefix("connect="));
    let decoded = named
        .map(|value| value.replace("%3A", ":").replace("%3a", ":").replace("%2F", "/").replace("%2f", "/"));
    let valid = decoded.filter(|origin| is_origin(origin)).take(MAX_ORIGINS);
    valid.map(|origin| format!(" {origin}")).collect()
}

/// Whether a text is `http(s)://HOST[:PORT]` and nothing that a policy would read as more than one host.
fn is_origin(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let scheme = uri.scheme_str().unwrap_or_default();
    let host = uri.host().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
    let port = uri.port_u16().map_or(String::new(), |port| format!(":{port}"));
    matches!(scheme, "http" | "https")
        && host.chars().all(plain)
        && text == format!("{scheme}://{host}{port}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// Files that a page loads only when an answer or its reader needs them.
    const LAZY: &[&str] = &[
        "highlight.js",
        "languages/",
        "markdown_import.js",
        "mcp.js",
        "other_exports.js",
        "pdf",
        "share.js",
        "tools.js",
        "vendor/",
    ];
    /// What the others may have together, compressed.
    const LIMIT: usize = 150 << 10;

    fn files(folder: &Path, under: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{under}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path(), &format!("{name}/"), found);
            } else {
                found.insert(name);
            }
        }
    }

    #[test]
    fn every_file_of_the_page_is_served() {
        let mut found = BTreeSet::new();
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("ui"), "", &mut found);
        let listed = ASSETS.iter().map(|asset| asset.path.to_owned());
        let expected: BTreeSet<String> =
            listed.chain(["index.html".into(), "tsconfig.json".into()]).collect();
        assert_eq!(found, expected);
    }

    /// No file asks for another host, and none makes nodes of text.
    #[test]
    fn the_page_contacts_no_other_host_and_parses_no_html() {
        for asset in ASSETS.iter().filter(|asset| !asset.path.starts_with("vendor/")) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!text.contains(forbidden), "{}: {forbidden}", asset.path);
            }
            for (at, _) in text.match_indices("http://").chain(text.match_indices("https://")) {
                let rest = &text[at..];
                let harmless = ["http://user:key@host", "http://www.w3.org/", "http://localhost:3000/mcp"];
                assert!(harmless.iter().any(|known| rest.starts_with(known)), "{}: {:.60}", asset.path, rest);
            }
        }
    }

    /// The size that a browser receives from a proxy that compresses; `gzip` is part of every system that
    /// builds.
    #[test]
    fn the_page_is_small() {
        let lazy = |asset: &&Asset| {
            LAZY.iter().any(|start| asset.path.starts_with(start)) && asset.path != "languages/en.js"
        };
        let mut gzip =
            match Command::new("gzip").arg("-9c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
                Ok(gzip) => gzip,
                Err(error) => {
                    println!("skipped: the size of the page (gzip: {error})");
                    return;
                }
            };
        let mut input = gzip.stdin.take().unwrap();
        let writer = std::thread::spawn(move || {
            input.write_all(PAGE.as_bytes()).unwrap();
            for asset in ASSETS.iter().filter(|asset| !lazy(asset)) {
                input.write_all(asset.bytes).unwrap();
            }
        });
        let size = gzip.wait_with_output().unwrap().stdout.len();
        writer.join().unwrap();
        assert!((10_000..LIMIT).contains(&size), "{size} bytes compressed, the limit is {LIMIT}");
    }

    #[test]
    fn only_plain_origins_can_be_added_to_the_policy() {
        assert_eq!(origins("connect=http%3A%2F%2Flocalhost%3A3000&x=1"), " http://localhost:3000");
        assert_eq!(
            origins("connect=https://a.example&connect=http://[::1]:80"),
            " https://a.example http://[::1]:80"
        );
        for bad in [
            "",
            "connect=",
            "connect=*",
            "connect=https://*.example",
            "connect=https:",
            "connect=http://a/b",
            "connect=http://a;script-src",
            "connect=http://a b",
            "connect=http%3A%2F%2Fa%3Bb",
            "connect=data:",
            "connect=ws://a",
            "connect=http://u:p@a",
            "connect=http://",
            "connect=http://a%20'unsafe-inline'",
            "connect=http://a:99999",
            "connect=http://a?x",
        ] {
            assert_eq!(origins(bad), "", "{bad}");
        }
        assert_eq!(origins(&"connect=http://a&".repeat(9)).matches("http").count(), MAX_ORIGINS);
    }
}
