//! Images that requests name by URL: over HTTP from allowed hosts with public addresses, and from a folder.

use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tern_server::{ImageUrlError, ImageUrls};
use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::http::header::{CONTENT_LENGTH, LOCATION};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::image_folder::ImageFolder;
use super::public_address::is_public;
use crate::args::ServeArgs;
use crate::error::{CliError, CliResult};

/// Redirects of one image at most.
const REDIRECTS: usize = 3;
/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(5);

/// Which images a server reads.
#[derive(Debug)]
pub(super) struct AllowedImages {
    /// Host names, in lower case; `*` is every one.
    hosts: Vec<String>,
    folder: Option<ImageFolder>,
    rules: Rules,
    agent: Agent,
}

/// Which servers of allowed hosts are asked.
#[derive(Clone, Copy, Debug)]
struct Rules {
    is_address: fn(IpAddr) -> bool,
    is_port: fn(u16) -> bool,
}

impl Rules {
    /// Those that are on the internet, at the ports of HTTP.
    const PUBLIC: Rules = Rules { is_address: is_public, is_port: |port| port == 80 || port == 443 };
}

impl AllowedImages {
    /// Those of the flags; none if there are no flags.
    pub(super) fn of(args: &ServeArgs) -> CliResult<Option<AllowedImages>> {
        if args.allow_image_urls.is_empty() && args.image_folder.is_none() {
            return Ok(None);
        }
        let open = |path: &PathBuf| {
            let failed = |why| CliError::message(format!("--image-folder {}: {why}", path.display()));
            ImageFolder::open(path).map_err(failed)
        };
        let folder = args.image_folder.as_ref().map(open).transpose()?;
        Ok(Some(AllowedImages::new(&args.allow_image_urls, folder, Rules::PUBLIC)))
    }

    fn new(hosts: &[String], folder: Option<ImageFolder>, rules: Rules) -> AllowedImages {
        let config = Agent::config_builder()
            // a proxy would resolve names itself
            .proxy(None)
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .timeout_connect(Some(CONNECT))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .max_idle_connections(0)
            .accept("image/*")
            .user_agent(concat!("tern/", env!("CARGO_PKG_VERSION")))
            .build();
        let resolver = CheckedResolver { resolver: DefaultResolver::default(), rules };
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        AllowedImages {
            hosts,
            folder,
            rules,
            agent: Agent::with_parts(config, DefaultConnector::new(), resolver),
        }
    }

    /// Refuses a URL whose host is not allowed.
    fn check(&self, url: &Uri) -> Result<(), ImageUrlError> {
        let refuse = |why: String| Err(ImageUrlError::Refused(why));
        let authority = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
        if authority.contains('@') {
            return refuse("the URL has a user name or a password".into());
        }
        let host = url.host().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
        if !self.hosts.iter().any(|allowed| *allowed == host || allowed == "*") {
            return refuse(format!("images of the host {host:?} are not allowed"));
        }
        match (url.scheme_str(), url.port_u16()) {
            (Some("http" | "https"), None) => Ok(()),
            (Some("http" | "https"), Some(port)) if (self.rules.is_port)(port) => Ok(()),
            (_, Some(port)) => {
                refuse(format!("the port {port} is not allowed: want 80 of http, 443 of https"))
            }
            _ => refuse("expected a URL of http or https".into()),
        }
    }

    fn fetch(&self, url: &str, max_bytes: usize, until: Instant) -> Result<Vec<u8>, ImageUrlError> {
        let failed = |why: String| ImageUrlError::Failed(format!("the image was not read: {why}"));
        let mut url: Uri =
            url.parse().map_err(|_| ImageUrlError::Refused("expected a URL of http or https".into()))?;
        for _ in 0..=REDIRECTS {
            self.check(&url)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed("the time for images is over".into()));
            }
            let request = self.agent.get(url.clone()).config().timeout_global(Some(left)).build();
            let response = request.call().map_err(|error| match error {
                ureq::Error::Other(why) if why.is::<NotPublic>() => ImageUrlError::Refused(why.to_string()),
                other => failed(other.to_string()),
            })?;
            let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            match response.status().as_u16() {
                200 => {
                    let length = header(CONTENT_LENGTH).and_then(|length| length.parse().ok());
                    if length.is_some_and(|length: u64| length > max_bytes as u64) {
                        return Err(too_large(max_bytes));
                    }
                    let mut body = response.into_body().into_reader().take(max_bytes as u64 + 1);
                    let mut bytes = vec![];
                    body.read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
                    return if bytes.len() > max_bytes { Err(too_large(max_bytes)) } else { Ok(bytes) };
                }
                301 | 302 | 303 | 307 | 308 => {
                    let next = header(LOCATION).and_then(|location| joined(&url, location));
                    let next =
                        next.ok_or_else(|| failed("its redirect has no URL of http or https".into()))?;
                    if url.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                        return Err(ImageUrlError::Refused(
                            "the image is redirected from https to http".into(),
                        ));
                    }
                    url = next;
                }
                status => return Err(failed(format!("its server answered {status}"))),
            }
        }
        Err(ImageUrlError::Refused(format!("the image is redirected more than {REDIRECTS} times")))
    }
}

fn too_large(max_bytes: usize) -> ImageUrlError {
    ImageUrlError::TooLarge(format!(
        "the images of the request are larger than --max-body allows: {max_bytes} bytes are left"
    ))
}

/// The URL of a redirect, which may be without its beginning.
fn joined(from: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let text = match location {
        _ if location.contains("://") => location.to_string(),
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ => {
            let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{location}")
        }
    };
    text.parse().ok()
}

impl ImageUrls for AllowedImages {
    fn read(&self, url: &str, max_bytes: usize, until: Instant) -> Result<Vec<u8>, ImageUrlError> {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
        match scheme.as_deref() {
            Some("http" | "https") if !self.hosts.is_empty() => self.fetch(url, max_bytes, until),
            Some("http" | "https") => Err(ImageUrlError::Refused(
                "the server reads no images over HTTP: see --allow-image-urls".into(),
            )),
            Some("file") => match &self.folder {
                Some(folder) => folder.read(url, max_bytes),
                None => Err(ImageUrlError::Refused("the server reads no files: see --image-folder".into())),
            },
            _ => Err(ImageUrlError::Refused(
                "expected a data URI with the image itself, or a URL of http, https or file".into(),
            )),
        }
    }
}

/// Resolves names to the allowed ones among their addresses.
#[derive(Debug)]
struct CheckedResolver {
    resolver: DefaultResolver,
    rules: Rules,
}

#[derive(Debug)]
struct NotPublic;

impl std::error::Error for NotPublic {}

impl std::fmt::Display for NotPublic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the host of the image has no public address")
    }
}

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut allowed = self.empty();
        for address in &self.resolver.resolve(uri, config, timeout)? {
            if (self.rules.is_address)(address.ip()) {
                allowed.push(*address);
            }
        }
        if allowed.is_empty() { Err(ureq::Error::Other(Box::new(NotPublic))) } else { Ok(allowed) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    /// A server of this machine that answers each connection with the text of its path.
    fn server(answer: fn(&str, u16) -> String) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut head, mut byte) = (vec![], [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                let path = head.split(' ').nth(1).unwrap_or_default();
                stream.write_all(answer(path, port).as_bytes()).unwrap();
            }
        });
        port
    }

    fn answer(path: &str, port: u16) -> String {
        let redirect =
            |to: &str| format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        match path {
            "/image" | "/folder/image" => "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nimage!".into(),
            "/long" => "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n".into(),
            "/endless" => format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", "x".repeat(99)),
            "/slow" => {
                std::thread::sleep(Duration::from_secs(2));
                String::new()
            }
            "/absolute" => redirect("/image"),
            "/folder/relative" => redirect("image"),
            "/scheme" => redirect(&format!("//localhost:{port}/image")),
            "/whole" => redirect(&format!("http://localhost:{port}/image")),
            "/other" => redirect(&format!("http://127.0.0.1:{port}/image")),
            "/file" => redirect("file:///etc/passwd"),
            "/round" => redirect("/round"),
            _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into(),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(700)
    }

    #[test]
    fn images_of_allowed_hosts_are_read_within_their_limits() {
        let local = Rules { is_address: |address| address.is_loopback(), is_port: |_| true };
        let (images, port) = (AllowedImages::new(&["LocalHost".into()], None, local), server(answer));
        let read = |path: &str| images.read(&format!("http://localhost:{port}{path}"), 10, soon());
        for path in ["/image", "/absolute", "/folder/relative", "/scheme", "/whole"] {
            assert_eq!(read(path).as_deref(), Ok(&b"image!"[..]), "{path}");
        }
        assert_eq!(read("/long"), Err(too_large(10)));
        assert_eq!(read("/endless"), Err(too_large(10)));
        for (path, want) in [
            ("/other", "images of the host \"127.0.0.1\" are not allowed"),
            ("/round", "the image is redirected more than 3 times"),
        ] {
            assert_eq!(read(path), Err(ImageUrlError::Refused(want.into())), "{path}");
        }
        let started = Instant::now();
        for path in ["/missing", "/file", "/slow"] {
            assert!(matches!(read(path), Err(ImageUrlError::Failed(_))), "{path}");
        }
        assert!(started.elapsed() < Duration::from_millis(1950), "{:?}", started.elapsed());
    }

    #[test]
    fn only_public_addresses_of_allowed_hosts_are_asked() {
        let port = server(|_, _| panic!("a connection"));
        let all = AllowedImages::new(&["*".into()], None, Rules { is_port: |_| true, ..Rules::PUBLIC });
        for host in
            ["localhost", "127.0.0.1", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", "169.254.169.254", "127.1"]
        {
            let error = all.read(&format!("http://{host}:{port}/image"), 10, soon()).unwrap_err();
            let why = "the host of the image has no public address";
            assert_eq!(error, ImageUrlError::Refused(why.into()), "{host}");
        }
        let one = AllowedImages::new(&["example.com".into()], None, Rules::PUBLIC);
        for url in [
            "http://example.org/a.png",
            "http://sub.example.com/a.png",
            "http://example.com.evil.org/a.png",
            "http://example.com@evil.org/a.png",
            "http://user:secret@example.com/a.png",
            "http://example.com:22/a.png",
            "https://",
            "http:/example.com",
            "ftp://example.com/a.png",
            "file:///etc/passwd",
            "gopher:",
            "",
        ] {
            let read = one.read(url, 10, soon());
            assert!(matches!(read, Err(ImageUrlError::Refused(_))), "{url}: {read:?}");
        }
    }
}
