//! Which addresses may be asked.
//!
//! What a tool is told to fetch comes from a model, and may come from whoever wrote what the model read. Without a guard
//! such a tool is a way into the network that the agent runs in. So names are looked up here, and a connection goes only to
//! an address that was looked at: a name that leads elsewhere a moment later gains nothing.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use umbel_core::{BoxFuture, Error, ErrorKind, Result};

/// Finds the addresses of a name.
pub trait Lookup: Send + Sync {
    /// The addresses that a name has now.
    fn lookup(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// A shared one is one.
impl Lookup for Arc<dyn Lookup> {
    fn lookup(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        (**self).lookup(host)
    }
}

/// The names that this machine knows.
struct System;

impl Lookup for System {
    fn lookup(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
        })
    }
}

/// Which addresses may be asked: the hosts that are named, at public addresses.
///
/// A host is `api.example.org`, or `api.example.org:8443` for one port alone; `*.example.org` stands for all names below,
/// and `*` for every host.
///
/// ```
/// use umbel_tools::Guard;
///
/// let guard = Guard::new(["api.example.org"]).allow_private("localhost:8080");
/// assert!(guard.check("https://api.example.org/users").is_ok());
/// assert!(guard.check("http://localhost:8080/").is_ok());
/// assert!(guard.check("https://elsewhere.example/").is_err());
/// ```
#[derive(Clone)]
pub struct Guard {
    hosts: Vec<Host>,
    private: Vec<Host>,
    lookup: Arc<dyn Lookup>,
}

/// A host that is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    fn read(text: &str) -> Self {
        let text = text.trim();
        // An address of IPv6 has colons of its own, and stands in brackets if a port follows.
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => match port.parse() {
                Ok(port) => (name, Some(port)),
                Err(_) => (text, None),
            },
            _ => (text, None),
        };
        Self { name: plain(name), port }
    }

    fn fits(&self, host: &str, port: Option<u16>) -> bool {
        let is_named = match self.name.strip_prefix('*') {
            Some("") => true,
            Some(end) => end.starts_with('.') && host.ends_with(end) && host.len() > end.len(),
            None => self.name == host,
        };
        is_named && (self.port.is_none() || port.is_none() || self.port == port)
    }
}

/// A host as it is compared: without brackets, without the dot that may end a name, in small letters.
fn plain(host: &str) -> String {
    let host = host.trim_end_matches('.');
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.to_ascii_lowercase()
}

impl Guard {
    /// These hosts alone.
    pub fn new<T: AsRef<str>>(hosts: impl IntoIterator<Item = T>) -> Self {
        let hosts = hosts.into_iter().map(|host| Host::read(host.as_ref())).collect();
        Self { hosts, private: Vec::new(), lookup: Arc::new(System) }
    }

    /// One more host.
    pub fn allow(mut self, host: &str) -> Self {
        self.hosts.push(Host::read(host));
        self
    }

    /// A host that may be on this machine or in its network. Name its port too, if there is just one.
    pub fn allow_private(mut self, host: &str) -> Self {
        self.private.push(Host::read(host));
        self
    }

    /// Finds addresses of names in another way than this machine does.
    pub fn lookup(mut self, lookup: impl Lookup + 'static) -> Self {
        self.lookup = Arc::new(lookup);
        self
    }

    /// Looks at an address before anything is sent there. What its name leads to is looked at when it is connected to.
    pub fn check(&self, url: &str) -> Result<Url> {
        let url = Url::parse(url).map_err(|error| refuse(format!("that is no web address: {error}")))?;
        self.check_url(&url)?;
        Ok(url)
    }

    pub(crate) fn check_url(&self, url: &Url) -> Result<()> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refuse(format!("`{}:` is not allowed: use an http or https address", url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refuse(
                "an address with a user's name or password in it is not allowed: leave them out",
            ));
        }
        let Some(host) = url.host_str().map(plain).filter(|host| !host.is_empty()) else {
            return Err(refuse("the address names no host"));
        };
        let port = url.port_or_known_default();
        let is_private = self.private.iter().any(|allowed| allowed.fits(&host, port));
        // A name that is private at one port is private at no other: when it is looked up, nobody knows the port.
        let is_other_port = !is_private && self.private.iter().any(|allowed| allowed.fits(&host, None));
        if is_other_port || (!is_private && !self.hosts.iter().any(|allowed| allowed.fits(&host, port))) {
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            return Err(refuse(format!("`{host}{port}` is not among the hosts that may be asked")));
        }
        match host.parse::<IpAddr>() {
            Ok(address) if !is_private && !is_public(address) => Err(inside(&host)),
            _ => Ok(()),
        }
    }

    /// Whether a host is among those that are allowed by name.
    pub(crate) fn names(&self, url: &Url) -> bool {
        let host = url.host_str().map(plain).unwrap_or_default();
        self.hosts.iter().any(|allowed| allowed.fits(&host, url.port_or_known_default()))
    }

    /// Whether a host may be on this machine or in its network.
    pub(crate) fn is_private(&self, url: &Url) -> bool {
        let host = url.host_str().map(plain).unwrap_or_default();
        self.private.iter().any(|allowed| allowed.fits(&host, url.port_or_known_default()))
    }

    /// The addresses of a name that may be connected to.
    async fn addresses(self, host: String) -> Result<Vec<IpAddr>> {
        let name = plain(&host);
        let found = self.lookup.lookup(host).await;
        let mut found = found.map_err(|error| refuse(format!("`{name}` was not found: {error}")))?;
        if found.is_empty() {
            return Err(refuse(format!("`{name}` was not found")));
        }
        // The port was looked at with the address.
        if !self.private.iter().any(|allowed| allowed.fits(&name, None)) {
            found.retain(|address| is_public(*address));
        }
        if found.is_empty() { Err(inside(&name)) } else { Ok(found) }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let addresses = guard.addresses(name.as_str().to_owned()).await?;
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, private, lookup: _ } = self;
        f.debug_struct("Guard").field("hosts", hosts).field("private", private).finish_non_exhaustive()
    }
}

fn refuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

/// Which address it is, is nobody's business outside.
fn inside(host: &str) -> Error {
    refuse(format!("`{host}` leads to an address that is not public, and such are not asked"))
}

/// Whether an address is one of the public network: not this machine, not its network, not a service of a cloud's own
/// machines, and nothing in which such an address may hide.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    // (first address, how many leading bits count)
    const NOT_PUBLIC: [(Ipv4Addr, u32); 17] = [
        (Ipv4Addr::new(0, 0, 0, 0), 8),          // this network
        (Ipv4Addr::new(10, 0, 0, 0), 8),         // private
        (Ipv4Addr::new(100, 64, 0, 0), 10),      // shared by a carrier's customers
        (Ipv4Addr::new(127, 0, 0, 0), 8),        // this machine
        (Ipv4Addr::new(168, 63, 129, 16), 32),   // services of Azure's hosts
        (Ipv4Addr::new(169, 254, 0, 0), 16),     // link-local, and metadata of clouds
        (Ipv4Addr::new(172, 16, 0, 0), 12),      // private
        (Ipv4Addr::new(192, 0, 0, 0), 24),       // protocols
        (Ipv4Addr::new(192, 0, 2, 0), 24),       // documentation
        (Ipv4Addr::new(192, 88, 99, 0), 24),     // relays to IPv6
        (Ipv4Addr::new(192, 168, 0, 0), 16),     // private
        (Ipv4Addr::new(198, 18, 0, 0), 15),      // measurements
        (Ipv4Addr::new(198, 51, 100, 0), 24),    // documentation
        (Ipv4Addr::new(203, 0, 113, 0), 24),     // documentation
        (Ipv4Addr::new(224, 0, 0, 0), 4),        // multicast
        (Ipv4Addr::new(240, 0, 0, 0), 4),        // reserved
        (Ipv4Addr::new(255, 255, 255, 255), 32), // everybody
    ];
    let within = |(first, bits): &(Ipv4Addr, u32)| {
        let mask = u32::MAX << (32 - bits);
        address.to_bits() & mask == first.to_bits() & mask
    };
    !NOT_PUBLIC.iter().any(within)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, _, e, f, ..] = address.segments();
    // Everything else is this machine, its link, its network, multicast, reserved, or a form of an IPv4 address: mapped,
    // compatible, translated.
    let is_global = a & 0xe000 == 0x2000;
    let is_protocol = a == 0x2001 && b < 0x0200; // Teredo, which holds IPv4, among them
    let is_documentation = (a == 0x2001 && b == 0x0db8) || (a == 0x3fff && b < 0x1000);
    let is_6to4 = a == 0x2002;
    let is_isatap = matches!(e, 0 | 0x0200) && f == 0x5efe;
    let is_sink = a == 0x2620 && b == 0x004f && c == 0x8000;
    is_global && !(is_protocol || is_documentation || is_6to4 || is_isatap || is_sink)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_not_public_are_known() {
        let inside = "
            0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1
            127.255.255.254 168.63.129.16 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255
            192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.7
            203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1
            ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1
            64:ff9b::a9fe:a9fe 64:ff9b:1::10.0.0.1 100::1 2001::1 2001:0:7f00:1:: 2001:2::1 2001:10::1
            2001:20::1 2001:db8::1 2002:7f00:1::1 2002:a9fe:a9fe:: 3fff::1 2600::5efe:7f00:1
            2600::200:5efe:a00:1 2620:4f:8000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 febf::1 fec0::1
            ff02::1 ff0e::1
        ";
        for address in inside.split_whitespace() {
            assert!(!is_public(address.parse().unwrap()), "{address} is not public");
        }
        let outside = "
            1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1
            168.63.129.15 169.253.255.255 172.15.255.255 172.32.0.0 192.0.1.1 192.167.255.255
            198.17.255.255 198.20.0.0 223.255.255.255 2001:200::1 2001:4860:4860::8888
            2606:4700:4700::1111 2a00:1450:4001::1 3ffe::1
        ";
        for address in outside.split_whitespace() {
            assert!(is_public(address.parse().unwrap()), "{address} is public");
        }
    }

    #[test]
    fn addresses_are_refused_however_they_are_written() {
        let guard = Guard::new(["*"]);
        let refused = [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1/",
            "http://0x7f.1/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[0:0:0:0:0:ffff:7f00:1]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[fd00:ec2::254]/",
            "http://①②⑦.⓪.⓪.①/",
            "http://127。0。0。1/",
            "http://user@api.example.org/",
            "http://user:word@api.example.org/",
            "http://:word@api.example.org/",
            "file:///etc/passwd",
            "ftp://api.example.org/",
            "gopher://api.example.org/",
            "data:text/plain,hi",
            "http://",
            "not an address",
            "//api.example.org/",
            "http://127.0.0.1:80\\@api.example.org/",
            "http://api.example.org@127.0.0.1/",
            "http://127.0.0.1./",
        ];
        for url in refused {
            assert!(guard.check(url).is_err(), "{url} is refused");
        }
        assert!(guard.check("http://1.1.1.1/").is_ok());
        assert!(guard.check("https://api.example.org:8443/a?b#c").is_ok());
    }

    #[test]
    fn hosts_are_allowed_by_name_port_and_what_is_below_them() {
        let guard = Guard::new(["api.example.org", "one.example:8443", "*.below.example", "[2600::1]:81"]);
        let guard = guard.allow("Late.Example.").allow_private("localhost:8080");
        for url in [
            "https://api.example.org/",
            "https://API.EXAMPLE.ORG./",
            "http://api.example.org:81/",
            "https://one.example:8443/",
            "https://a.below.example/",
            "https://a.b.below.example/",
            "http://[2600::1]:81/",
            "http://localhost:8080/",
            "https://late.example/",
        ] {
            assert!(guard.check(url).is_ok(), "{url} is allowed");
        }
        for url in [
            "https://example.org/",
            "https://one.example/",
            "https://below.example/",
            "https://xbelow.example/",
            "https://api.example.org.evil.example/",
            "http://[2600::1]/",
            "http://localhost/",
            "http://localhost:8081/",
        ] {
            let error = guard.check(url).unwrap_err();
            assert!(error.message().contains("not among the hosts"), "{url}: {error}");
        }
    }

    struct Fixed(Vec<&'static str>);

    impl Lookup for Fixed {
        fn lookup(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            let found = self.0.iter().map(|address| address.parse().unwrap()).collect();
            Box::pin(async move { Ok(found) })
        }
    }

    #[tokio::test]
    async fn only_public_addresses_of_a_name_are_connected_to() {
        let ask = async |addresses: &[&'static str], private: &str| {
            let guard = Guard::new(["*"]).lookup(Fixed(addresses.to_vec())).allow_private(private);
            let found = guard.addresses("name.example".to_owned()).await;
            found.map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(ask(&["10.0.0.1", "1.1.1.1", "::1"], "x").await.unwrap(), ["1.1.1.1"]);
        let error = ask(&["10.0.0.1", "::ffff:1.1.1.1"], "x").await.unwrap_err();
        assert_eq!(
            error.message(),
            "`name.example` leads to an address that is not public, and such are not asked"
        );
        assert_eq!(ask(&[], "x").await.unwrap_err().message(), "`name.example` was not found");
        assert_eq!(ask(&["10.0.0.1"], "name.example:80").await.unwrap(), ["10.0.0.1"]);
    }

    #[test]
    fn a_name_that_is_private_at_one_port_is_asked_at_no_other() {
        let guard = Guard::new(["*"]).allow_private("name.example:80");
        assert!(guard.check("http://name.example/").is_ok());
        assert!(guard.check("http://name.example:81/").is_err());
    }
}
