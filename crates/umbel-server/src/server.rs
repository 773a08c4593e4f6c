//! The server: agents at paths, put together and run.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::request::Parts;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use smol_str::SmolStr;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use umbel_core::deadline::finite;
use umbel_core::{Caller, Error, ErrorKind, Result};
use umbel_runtime::Prices;

use crate::app::{App, Offered};
use crate::apps::Apps;
use crate::auth::{Auth, Principal};
use crate::connections::{Connection, Connections, OpenConnection};
use crate::endpoint::AgentEndpoint;
use crate::gate::{self, Gate};
use crate::listener::{Accepted, Listener};
use crate::live::Stop;
use crate::metrics::Metrics;
use crate::mount::ToCaller;
use crate::panics::caught;
use crate::paths::Paths;
use crate::patience::Patience;
use crate::problem::Problem;
use crate::protected::ProtectedResource;
use crate::recover::recover_on;
use crate::resolve::{Asking, Choice};
use crate::runs::{Runs, ServerLimits};
use crate::sweep::{Sweep, sweep_on};
use crate::trace::Traces;
use crate::{agents, mount, post, routes, steps, thread_events, thread_list, threads, trace};

/// How often runs that nobody looks at, and those that are over, are seen to.
const TIDY: Duration = Duration::from_millis(500);

/// The flush timeout of a stopping server: how long connections may take to send what is left. On a
/// busy machine many streams need more than 2 s.
const FLUSH: Duration = Duration::from_secs(5);

/// Puts a server together: agents at paths, who may ask, and how much it takes on.
#[derive(Default)]
pub struct Server {
    agents: Vec<(SmolStr, AgentEndpoint)>,
    choices: Vec<(SmolStr, Choice)>,
    mounts: Vec<(SmolStr, MethodRouter<Arc<App>>)>,
    protected: Option<ProtectedResource>,
    sweep: Option<Option<Sweep>>,
    auth: Option<Arc<dyn Auth>>,
    caller: Option<Arc<ToCaller>>,
    limits: ServerLimits,
    base: SmolStr,
    hosts: Vec<String>,
    origins: Vec<String>,
    studio: bool,
    inspect: Option<bool>,
    traces: Option<Traces>,
    trusts_traces: Option<bool>,
    prices: Prices,
}

impl Server {
    /// A server without agents yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers an agent at a path, such as `/chat`.
    pub fn agent(mut self, path: impl Into<SmolStr>, agent: AgentEndpoint) -> Self {
        self.agents.push((path.into(), agent));
        self
    }

    /// Offers one of several agents at a path. `choose` names the one that a request is for; the agents are given by name,
    /// so that their runs are seen to after a crash. Where it says `None`, the agent is the one that spoke last in the
    /// thread, or the first for a new one.
    ///
    /// Agents that share an app and a store share their threads.
    pub fn resolver<N: Into<SmolStr>>(
        mut self,
        path: impl Into<SmolStr>,
        agents: impl IntoIterator<Item = (N, AgentEndpoint)>,
        choose: impl Fn(&Asking<'_>) -> Result<Option<SmolStr>, Problem> + Send + Sync + 'static,
    ) -> Self {
        let agents = agents.into_iter().map(|(name, agent)| (name.into(), Arc::new(agent))).collect();
        self.choices.push((path.into(), Choice { agents, choose: Arc::new(choose) }));
        self
    }

    /// Serves something of its own at a path, such as an MCP server: a `tower` service. What the server asks of every
    /// request it has asked before: who sent it, which is told as a [`Caller`] among the request's extensions (see
    /// [`caller`](Self::caller)), from where it comes, and how large it is. When the server stops, it does not wait for its streams.
    pub fn mount<S, R>(mut self, path: impl Into<SmolStr>, service: S) -> Self
    where
        S: tower_service::Service<axum::extract::Request, Response = R, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
        R: IntoResponse,
    {
        self.mounts.push((path.into(), mount::route(service)));
        self
    }

    /// Tells those who have no good token where to come by one.
    pub fn protected_resource(mut self, protected: ProtectedResource) -> Self {
        self.protected = Some(protected);
        self
    }

    /// When sessions that nobody comes back to are deleted; `None` is never. Unless told, sessions in memory are deleted
    /// after 20 minutes, and sessions of any other store are kept.
    pub fn sweep(mut self, sweep: impl Into<Option<Sweep>>) -> Self {
        self.sweep = Some(sweep.into());
        self
    }

    /// Asks every request who sent it. Without this, the server listens on loopback alone.
    pub fn auth(mut self, auth: impl Auth + 'static) -> Self {
        self.auth = Some(Arc::new(auth));
        self
    }

    /// Whose sessions a request for a [mounted](Self::mount) service is about: the user, and the app, such as a tenant's.
    /// Without this the user is the principal, and the app that of the agent. What endpoints of agents say of users and apps
    /// is about their own paths alone.
    ///
    /// ```
    /// use umbel_core::Caller;
    /// use umbel_server::{Problem, Server};
    ///
    /// let server = Server::new().caller(|_, principal| {
    ///     let claims = principal.claims.as_ref();
    ///     let tenant = claims.and_then(|claims| claims.get("tenant")?.as_str().map(str::to_owned));
    ///     let tenant = tenant.ok_or_else(|| Problem::unauthorized("the token names no tenant"))?;
    ///     Ok(Caller::new(principal.id.clone()).app(tenant))
    /// });
    /// # let _ = server;
    /// ```
    pub fn caller(
        mut self,
        make: impl Fn(&Parts, &Principal) -> Result<Caller, Problem> + Send + Sync + 'static,
    ) -> Self {
        self.caller = Some(Arc::new(make));
        self
    }

    /// How much it takes on.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// What comes before all paths, for a server behind a proxy, such as `/agents`.
    pub fn base_path(mut self, base: &str) -> Self {
        let base = base.trim_matches('/');
        self.base = if base.is_empty() { SmolStr::default() } else { smol_str::format_smolstr!("/{base}") };
        self
    }

    /// A name by which the server may be asked, besides those of loopback. Without auth no other counts.
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// An origin whose pages may ask, such as `https://app.example`. None may unless said so.
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Self {
        self.origins.push(origin.into());
        self
    }

    /// Whether clients may look into agents and their work: what agents are made of, what models were asked, the log of a
    /// thread, where the time of a run went. Without auth they may unless said otherwise; with auth they may not, since
    /// instructions and logs are not every user's business.
    pub fn inspect(mut self, allowed: bool) -> Self {
        self.inspect = Some(allowed);
        self
    }

    /// Tells of each run where its time went, as it was recorded. Its [layer](Traces::layer) must be part of the process's
    /// `tracing` subscriber. Without it, or for runs of another process, that follows from the log, more coarsely.
    pub fn traces(mut self, traces: Traces) -> Self {
        self.traces = Some(traces);
        self
    }

    /// Whether requests are part of the trace that they name in `traceparent`. Those of strangers are not: unless told otherwise it
    /// is believed of who has authenticated, and without auth as long as the server is known by the names of this machine alone. What
    /// `tracestate` says is sent on to models and services, so it is taken only if told so here. A request that is turned away is never
    /// part of another trace. It holds for mounted services as well.
    pub fn trust_traces(mut self, trusted: bool) -> Self {
        self.trusts_traces = Some(trusted);
        self
    }

    /// What models cost, in US dollars, so that traces tell what each call of one did.
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = prices;
        self
    }

    /// Serves the studio at `/studio/`, pages that show what agents do, and leads there from `/`. Its files are open to
    /// all; what they show has to be asked for like everything else.
    #[cfg(feature = "studio")]
    pub fn studio(mut self, served: bool) -> Self {
        self.studio = served;
        self
    }

    /// Checks everything and makes the service.
    pub fn build(self) -> Result<Service> {
        let (runs, metrics) = (Runs::new(self.limits.clone()), Arc::default());
        Ok(Service::new(self.put_together(runs, metrics)?))
    }

    /// Checks everything, and puts it together around a table of runs.
    fn put_together(self, runs: Arc<Runs>, metrics: Arc<Metrics>) -> Result<Served> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Build, message));
        let Self {
            agents,
            choices,
            mounts,
            protected,
            sweep,
            auth,
            caller,
            base,
            mut hosts,
            origins,
            studio,
            inspect,
            traces,
            trusts_traces,
            prices,
            limits: _,
        } = self;
        let mut offers = offers_of(agents, choices)?;
        if offers.is_empty() && mounts.is_empty() {
            return refuse("a server without agents has nothing to offer: add one with `agent`".to_owned());
        }
        let is_local = auth.is_none() && hosts.is_empty();
        if auth.is_none() || !hosts.is_empty() {
            hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        }
        let own = |path: &str| format!("{base}{path}");
        let protected = protected.map(ProtectedResource::published).transpose()?;
        let mut routes = vec![
            (own("/health"), get(health)),
            (own("/ready"), get(ready)),
            (own("/metrics"), get(show_metrics)),
            (own("/agents"), get(agents::listed)),
        ];
        let told: Vec<String> = protected.iter().flat_map(|told| told.paths.clone()).collect();
        routes.extend(told.iter().map(|path| (path.clone(), get(show_protected))));
        let mut paths = Paths::new(studio.then(|| base.clone()));
        for (path, _) in &routes {
            paths.take(path)?;
        }
        let named = |path: &str| path.strip_prefix(base.as_str()).unwrap_or(path).to_owned();
        let mut scoped = Vec::new();
        for (path, ..) in &mut offers {
            *path = smol_str::format_smolstr!("{base}/{}", path.trim_matches('/'));
            scoped.push((path.trim_end_matches('/').to_owned(), named(path)));
            for (path, _) in agent_routes(path) {
                paths.take(&path)?;
            }
        }
        for (path, route) in mounts {
            let path = own(&format!("/{}", path.trim_matches('/')));
            paths.take_all(&path)?;
            scoped.push((path.clone(), named(&path)));
            routes.push((path, route));
        }
        // The longest path that fits is the one that is meant.
        scoped.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        let open = ["/health", "/ready"].map(own).into_iter().chain(told).collect();
        let app = Arc::new(App {
            runs,
            traces,
            trusts_traces: trusts_traces.unwrap_or(is_local || auth.is_some()),
            takes_tracestate: trusts_traces == Some(true),
            prices,
            inspect: inspect.unwrap_or(auth.is_none()),
            scoped,
            metrics_at: own("/metrics"),
            gate: Gate { hosts, origins, open, studio_at: studio.then(|| base.clone()) },
            auth,
            caller,
            caller_apps: Apps::default(),
            protected,
            metrics,
            listed: agents::list(offers.iter().map(|(path, agent, _)| (path, &**agent))),
            agents: offers.iter().flat_map(|(_, agent, choice)| all_of(agent, choice.as_deref())).collect(),
            sweep,
        });
        let mut router = router_of(routes, app.clone());
        for (path, endpoint, choice) in offers {
            let offered = Offered { app: app.clone(), endpoint, choice, path };
            router = router.merge(router_of(agent_routes(&offered.path), offered));
        }
        #[cfg(feature = "studio")]
        if studio {
            router = router.merge(crate::studio::routes(&base));
        }
        let router = router.fallback(async || Problem::not_found("page"));
        let router = router.method_not_allowed_fallback(async || {
            let message = "that cannot be done here: see which methods the guide lists for this path";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
        });
        let router = router.layer(axum::middleware::from_fn_with_state(app.clone(), gate::pass));
        Ok(Served { app, router })
    }
}

/// An agent at a path, or several to choose from.
type Offer = (SmolStr, Arc<AgentEndpoint>, Option<Arc<Choice>>);

/// What is offered at which paths.
fn offers_of(agents: Vec<(SmolStr, AgentEndpoint)>, choices: Vec<(SmolStr, Choice)>) -> Result<Vec<Offer>> {
    let mut offers: Vec<Offer> =
        agents.into_iter().map(|(path, agent)| (path, Arc::new(agent), None)).collect();
    for (path, choice) in choices {
        let Some((_, first)) = choice.agents.first() else {
            let message = format!("there is no agent to choose from at `{path}`: name some");
            return Err(Error::new(ErrorKind::Build, message));
        };
        offers.push((path, first.clone(), Some(Arc::new(choice))));
    }
    Ok(offers)
}

/// The agents of a path.
fn all_of(agent: &Arc<AgentEndpoint>, choice: Option<&Choice>) -> Vec<Arc<AgentEndpoint>> {
    match choice {
        Some(choice) => choice.agents.iter().map(|(_, agent)| agent.clone()).collect(),
        None => vec![agent.clone()],
    }
}

/// A router of paths and what is there.
fn router_of<S: Clone + Send + Sync + 'static>(routes: Vec<(String, MethodRouter<S>)>, state: S) -> Router {
    let add = |router: Router<S>, (path, route): (String, MethodRouter<S>)| router.route(&path, route);
    routes.into_iter().fold(Router::new(), add).with_state(state)
}

/// The routes of one agent, by its path.
fn agent_routes(path: &str) -> Vec<(String, MethodRouter<Offered>)> {
    let path = path.trim_end_matches('/');
    let routes = [
        ("", post(post::run)),
        ("/capabilities", get(routes::capabilities)),
        ("/runs/{run}/events", get(routes::events)),
        ("/runs/{run}/cancel", post(routes::cancel)),
        ("/runs/{run}/steps", get(steps::steps)),
        ("/runs/{run}/steps/{step}/request", get(steps::request)),
        ("/graph", get(agents::graph)),
        ("/runs/{run}/trace", get(trace::trace)),
        ("/threads", get(thread_list::threads)),
        ("/threads/{thread}", get(threads::read_thread).delete(threads::delete_thread)),
        ("/threads/{thread}/events", get(thread_events::events)),
        ("/threads/{thread}/runs", get(threads::thread_runs)),
        ("/threads/{thread}/fork", post(threads::fork_thread)),
    ];
    let whole = |below: &str| match format!("{path}{below}") {
        none if none.is_empty() => "/".to_owned(),
        some => some,
    };
    routes.into_iter().map(|(below, route)| (whole(below), route)).collect()
}

async fn health() -> Response {
    json(StatusCode::OK, "{\"status\":\"ok\"}")
}

/// Whether runs may begin, and the stores answer.
async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.runs.is_draining() {
        return json(StatusCode::SERVICE_UNAVAILABLE, "{\"status\":\"stopping\"}");
    }
    for endpoint in &app.agents {
        let look = endpoint.runner.sessions().user_state(endpoint.runner.app(), "readiness");
        let looked = tokio::time::timeout(Duration::from_secs(2), look).await;
        if !matches!(looked, Ok(Ok(_))) {
            return json(StatusCode::SERVICE_UNAVAILABLE, "{\"status\":\"the store does not answer\"}");
        }
    }
    json(StatusCode::OK, "{\"status\":\"ok\"}")
}

async fn show_metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = app.metrics.text(&app.runs).into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn show_protected(State(app): State<Arc<App>>) -> Response {
    let document = app.protected.as_ref().map(|told| &told.document);
    routes::answer(StatusCode::OK, document.unwrap_or(&serde_json::Value::Null))
}

fn json(status: StatusCode, body: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A server that was put together.
#[derive(Clone)]
pub struct Service {
    served: Arc<watch::Sender<Served>>,
}

impl Service {
    fn new(served: Served) -> Self {
        Self { served: Arc::new(watch::Sender::new(served)) }
    }

    fn app(&self) -> Arc<App> {
        self.served.borrow().app.clone()
    }

    /// Its routes, to be part of an application of your own. Keep [`tend`](Self::tend) running beside it.
    pub fn router(&self) -> Router {
        Router::new().fallback_service(Doors { served: self.served.clone(), connection: None })
    }

    /// Takes another server in the place of what is served, such as one with agents that were changed. Requests that come
    /// from now on are its own. Runs under way go on as they began, and are found by who looks for them; a thread still has
    /// one run at a time. How much the server takes on stays as it was, so the limits of the new one do not count.
    ///
    /// What the new one does not have any more is out of reach: a run at a path that is gone goes on to its end, for those
    /// who read its stream already; whoever asks for it, to read, to cancel or to answer, gets 404. Runs of an app that is
    /// gone are not gone on with after a crash, and its idle sessions are not deleted, until a server has that app again.
    ///
    /// If it does not fit together, or asks nobody who they are while the old one does, all stays as it was.
    pub fn replace(&self, server: Server) -> Result<()> {
        let old = self.app();
        if old.auth.is_some() && server.auth.is_none() {
            let message = "who may ask cannot be left open while the server runs: set `auth`";
            return Err(Error::new(ErrorKind::Build, message));
        }
        let new = server.put_together(old.runs.clone(), old.metrics.clone())?;
        old.caller_apps.all().iter().for_each(|app| new.app.caller_apps.note(app));
        for endpoint in &new.app.agents {
            for known in old.agents.iter().filter(|known| known.runner.app() == endpoint.runner.app()) {
                endpoint.know_apps(&known.apps());
            }
        }
        self.served.send_replace(new);
        Ok(())
    }

    /// Sees to runs that nobody looks at, to those of processes that died, to idle sessions, and to what is kept; as long
    /// as it is polled.
    pub async fn tend(&self) {
        let runs = self.app().runs.clone();
        let tidy = async {
            loop {
                tokio::time::sleep(TIDY).await;
                // A panic was logged, and the next time comes all the same.
                let _ = caught("tidying up runs", async { runs.tidy() }).await;
            }
        };
        futures::join!(recover_on(self.served.subscribe()), tidy, sweep_on(self.served.subscribe()));
    }

    /// Serves until `stop` is done. Then no run begins any more; those under way may go on for a
    /// while, and each stream ends with a terminal event. It listens where a `TcpListener` or a
    /// [`Listener`] does.
    pub async fn serve(
        self,
        listener: impl Into<Listener>,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let listener = listener.into();
        let runs = self.app().runs.clone();
        check_place(&self.app(), &listener)?;
        let (closing, closed) = watch::channel(false);
        let connections = Connections::new(runs.limits());
        let accept = async {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        // Nobody who is here can make room.
                        let Some(open) = connections.open(peer, listener.is_tls()) else { continue };
                        let doors = Doors { served: self.served.clone(), connection: Some(open.0.clone()) };
                        spawn(open, doors, stream, closed.clone(), runs.limits());
                    }
                    Err(error) => {
                        tracing::warn!("a connection could not be taken: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = self.tend() => {}
            () = stop => {}
        }
        drop(listener);
        self.drain().await;
        let _ = closing.send(true);
        // Those who do not read their last words are not waited for.
        let _ = tokio::time::timeout(FLUSH, connections.empty()).await;
        Ok(())
    }

    /// Lets no run begin any more, and waits until those under way have ended; they are cancelled if it takes too long.
    pub async fn drain(&self) {
        let runs = self.app().runs.clone();
        let limits = runs.limits();
        let live = runs.drain();
        let ended = futures::future::join_all(live.iter().map(|live| live.ended()));
        if tokio::time::timeout(limits.drain, ended).await.is_err() {
            live.iter().for_each(|live| live.stop(Stop::Now));
            let ended = futures::future::join_all(live.iter().map(|live| live.ended()));
            let _ = tokio::time::timeout(Duration::from_secs(10), ended).await;
        }
    }

    /// Forgets the frames of runs that are over. Their streams are made from the log then.
    pub fn forget_frames(&self) {
        self.app().runs.forget();
    }
}

/// What is served at a time.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) app: Arc<App>,
    router: Router,
}

/// Where requests come in: each goes to what is served when it comes.
#[derive(Clone)]
struct Doors {
    served: Arc<watch::Sender<Served>>,
    /// By which connection, if that is known.
    connection: Option<Arc<Connection>>,
}

impl<B> tower_service::Service<Request<B>> for Doors
where
    Router: tower_service::Service<Request<B>, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = <Router as tower_service::Service<Request<B>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router always is.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(connection) = &self.connection {
            request.extensions_mut().insert(connection.clone());
        }
        let mut router = self.served.borrow().router.clone();
        router.call(request)
    }
}

/// Without auth, whoever can reach the server is taken to sit at this machine.
fn check_place(app: &App, listener: &Listener) -> io::Result<()> {
    let Some(address) = listener.exposed()?.filter(|_| app.auth.is_none()) else { return Ok(()) };
    let message =
        format!("{address} can be reached from elsewhere, and nobody is asked who they are: set `auth`");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Serves a connection in a task of its own, until it ends or has to make room.
fn spawn(
    open: OpenConnection,
    doors: Doors,
    stream: Accepted,
    closed: watch::Receiver<bool>,
    limits: &ServerLimits,
) {
    match stream {
        Accepted::Tcp(stream) => {
            let stream = Patience::new(stream, limits.read_time);
            tokio::spawn(until_closed(open, connection(doors, stream, closed, limits)));
        }
        #[cfg(feature = "tls")]
        Accepted::Tls(stream, tls) => {
            let stream = Patience::new(stream, limits.read_time);
            tokio::spawn(until_closed(open, tls_connection(doors, stream, tls, closed, limits.clone())));
        }
        #[cfg(unix)]
        Accepted::Unix(stream) => {
            let stream = Patience::new(stream, limits.read_time);
            tokio::spawn(until_closed(open, connection(doors, stream, closed, limits)));
        }
    }
}

async fn until_closed(open: OpenConnection, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = open.0.closed() => {}
    }
    drop(open);
}

/// Serves one connection after its handshake, which has as much time as a request.
#[cfg(feature = "tls")]
async fn tls_connection(
    doors: Doors,
    stream: Patience<tokio::net::TcpStream>,
    tls: crate::tls::Tls,
    mut closed: watch::Receiver<bool>,
    limits: ServerLimits,
) {
    let handshake = tokio::time::timeout(limits.request_time, tls.handshake(stream));
    let shaken = tokio::select! {
        shaken = handshake => shaken,
        // Nobody who has not asked yet gets an answer any more.
        _ = closed.changed() => return,
    };
    match shaken {
        Ok(Ok(stream)) => connection(doors, stream, closed, &limits).await,
        Ok(Err(error)) => tracing::debug!("a handshake failed: {error}"),
        Err(_) => tracing::debug!("a handshake took too long (`request_time`)"),
    }
}

/// Serves one connection. Told to close, it answers what it has and then does.
fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    doors: Doors,
    stream: S,
    mut closed: watch::Receiver<bool>,
    limits: &ServerLimits,
) -> impl Future<Output = ()> + Send + 'static {
    let mut http = http1::Builder::new();
    // A clock cannot be asked for a time without end.
    let head_time = finite(limits.request_time);
    http.timer(TokioTimer::new()).header_read_timeout(head_time).max_buf_size(64 * 1024);
    let service = TowerToHyperService::new(doors);
    async move {
        let mut connection = http.serve_connection(TokioIo::new(stream), service);
        let over = tokio::select! {
            over = &mut connection => Some(over),
            _ = closed.changed() => None,
        };
        let over = match over {
            Some(over) => over,
            None => {
                Pin::new(&mut connection).graceful_shutdown();
                (&mut connection).await
            }
        };
        let Err(error) = over else { return };
        tracing::debug!("a connection ended: {error}");
        let parts = connection.into_parts();
        // A head that began and did not end is answered; who said nothing at all asked for nothing.
        if error.is_timeout() && !parts.read_buf.is_empty() {
            too_slow(parts.io.into_inner()).await;
        }
    }
}

/// Tells a client that its request took too long, before there was one that a route could answer.
async fn too_slow(mut stream: impl AsyncWrite + Unpin) {
    let problem = Problem::too_slow();
    let body = problem.body().to_string();
    let answer = format!(
        "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    // It may be gone.
    if stream.write_all(answer.as_bytes()).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.agents.iter().map(|(path, _)| path)).finish()
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({} agents)", self.app().agents.len())
    }
}
