//! Reading an OpenAPI document. What is wrong is said with the place where it is, as a JSON pointer.

use reqwest::Method;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{Error, ErrorKind, Object, Result};

use super::schema::Schemas;

/// How long the words for the model may be.
const LONGEST_WORDS: usize = 1024;

/// A document that says that it is one.
pub(super) struct Document<'a> {
    pub(super) root: &'a Value,
}

/// An operation as it was found.
pub(super) struct Found<'a> {
    pub(super) id: String,
    /// What the model calls it.
    pub(super) name: SmolStr,
    pub(super) pointer: String,
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) tags: Vec<&'a str>,
    item: &'a Value,
    pub(super) operation: &'a Value,
}

/// What an operation is called with.
pub(super) struct Arguments {
    pub(super) parameters: Vec<Parameter>,
    /// The argument that is the body, if there is one.
    pub(super) body: Option<String>,
    /// The schema of all of them.
    pub(super) schema: Value,
}

/// A parameter of an operation.
pub(super) struct Parameter {
    /// The argument that has its value.
    pub(super) argument: String,
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) required: bool,
    /// Whether each element of a list is said by itself.
    pub(super) explode: bool,
    pub(super) deep: bool,
}

/// Where a parameter goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Path,
    Query,
    Header,
    Cookie,
}

pub(super) fn wrong(pointer: &str, why: &str) -> Error {
    Error::new(ErrorKind::Build, format!("the OpenAPI document is wrong at {pointer}: {why}"))
}

/// A key as part of a JSON pointer.
pub(super) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl Found<'_> {
    pub(super) fn wrong(&self, why: &str) -> Error {
        wrong(&self.pointer, why)
    }

    /// Whether it only reads.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }

    /// What the model is told of it.
    pub(super) fn words(&self) -> String {
        let text = |key: &str| self.operation.get(key).and_then(Value::as_str).map(str::trim);
        let (summary, description) = (text("summary"), text("description"));
        let mut words: Vec<&str> = Vec::new();
        for text in [summary, description].into_iter().flatten().filter(|text| !text.is_empty()) {
            if !words.contains(&text) {
                words.push(text);
            }
        }
        match words.is_empty() {
            true => format!("{} {}", self.method, self.path),
            false => words.join("\n").chars().take(LONGEST_WORDS).collect(),
        }
    }
}

impl<'a> Document<'a> {
    pub(super) fn new(root: &'a Value) -> Result<Self> {
        let version = root.get("openapi").and_then(Value::as_str);
        match version {
            Some(version) if version.starts_with("3.0") || version.starts_with("3.1") => Ok(Self { root }),
            Some(version) => {
                let why = format!("version {version} is not known: use a document of 3.0 or 3.1");
                Err(wrong("#/openapi", &why))
            }
            None if root.get("swagger").is_some() => {
                let why = "Swagger 2 is not known: turn it into OpenAPI 3 first, with a converter";
                Err(wrong("#/swagger", why))
            }
            None => Err(wrong("#", "it has no `openapi` with a version, such as \"3.1.0\"")),
        }
    }

    /// All operations, in the document's order.
    pub(super) fn operations(&self) -> Result<Vec<Found<'a>>> {
        let paths = match self.root.get("paths") {
            Some(Value::Object(paths)) => paths,
            Some(_) => return Err(wrong("#/paths", "it must be an object, with a path for each key")),
            None => return Err(wrong("#", "it has no `paths`, so that there is nothing to call")),
        };
        let mut all = Vec::new();
        for (path, item) in paths.iter().filter(|(path, _)| !path.starts_with("x-")) {
            let pointer = format!("#/paths/{}", escape(path));
            if !path.starts_with('/') {
                return Err(wrong(&pointer, "a path must begin with `/`"));
            }
            let (item, pointer) = self.follow(item, &pointer)?;
            let Some(entries) = item.as_object() else {
                return Err(wrong(&pointer, "it must be an object, with an operation for each method"));
            };
            for (key, operation) in entries {
                let method = match key.as_str() {
                    "get" => Method::GET,
                    "put" => Method::PUT,
                    "post" => Method::POST,
                    "delete" => Method::DELETE,
                    "head" => Method::HEAD,
                    "patch" => Method::PATCH,
                    _ => continue,
                };
                let pointer = format!("{pointer}/{key}");
                if !operation.is_object() {
                    return Err(wrong(&pointer, "an operation must be an object"));
                }
                let id = operation.get("operationId").and_then(Value::as_str).map(str::to_owned);
                let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| made_id(key, path));
                let tags = operation.get("tags").and_then(Value::as_array).into_iter().flatten();
                let tags = tags.filter_map(Value::as_str).collect();
                let name = SmolStr::default();
                all.push(Found { id, name, pointer, method, path, tags, item, operation });
            }
        }
        Ok(all)
    }

    /// What an operation is called with; or why it cannot be called. Parameters that `is_ours` are not the model's to say.
    pub(super) fn arguments(
        &self,
        found: &Found<'a>,
        is_ours: impl Fn(Place, &str) -> bool,
    ) -> Result<Result<Arguments, String>> {
        let mut schemas = Schemas::new(self.root);
        let (mut properties, mut required) = (Object::new(), Vec::new());
        let mut parameters: Vec<Parameter> = Vec::new();
        for (value, pointer) in self.parameters(found)? {
            let Some((mut parameter, schema)) = self.parameter(value, &pointer, &mut schemas)? else {
                continue;
            };
            if is_ours(parameter.place, &parameter.name) {
                continue;
            }
            while properties.contains_key(&parameter.argument) || parameter.argument == "body" {
                parameter.argument.push_str(parameter.place.suffix());
            }
            properties.insert(parameter.argument.clone(), schema);
            if parameter.required {
                required.push(Value::String(parameter.argument.clone()));
            }
            parameters.push(parameter);
        }
        for name in names_in(found.path) {
            let is_there = |known: &Parameter| known.place == Place::Path && known.name == name;
            if !parameters.iter().any(is_there) {
                return Err(
                    found.wrong(&format!("the path has `{{{name}}}`, and no parameter says what it is"))
                );
            }
        }
        let body = match self.body(found, &mut schemas)? {
            Ok(body) => body,
            Err(why) => return Ok(Err(why)),
        };
        let body = body.map(|(schema, is_required)| {
            properties.insert("body".to_owned(), schema);
            if is_required {
                required.push(Value::String("body".to_owned()));
            }
            "body".to_owned()
        });
        let mut schema = json!({"type": "object", "properties": properties});
        if let Some(object) = schema.as_object_mut().filter(|_| !required.is_empty()) {
            object.insert("required".to_owned(), Value::Array(required));
        }
        Ok(Ok(Arguments { parameters, body, schema }))
    }

    /// The parameters of an operation with their places: its own, and those of its path that it does not say anew.
    fn parameters(&self, found: &Found<'a>) -> Result<Vec<(&'a Value, String)>> {
        let mut all: Vec<(&'a Value, String)> = Vec::new();
        let item = found.pointer.rsplit_once('/').map_or("#", |(item, _)| item);
        for (holder, at) in [(found.item, item), (found.operation, found.pointer.as_str())] {
            let pointer = format!("{at}/parameters");
            let list = match holder.get("parameters") {
                None => continue,
                Some(Value::Array(list)) => list,
                Some(_) => return Err(wrong(&pointer, "it must be a list")),
            };
            for (index, value) in list.iter().enumerate() {
                let (value, pointer) = self.follow(value, &format!("{pointer}/{index}"))?;
                let same =
                    |other: &Value| ["name", "in"].iter().all(|key| other.get(*key) == value.get(*key));
                match all.iter_mut().find(|(known, _)| same(known)) {
                    Some(known) => *known = (value, pointer),
                    None => all.push((value, pointer)),
                }
            }
        }
        Ok(all)
    }

    /// A parameter and its schema. `None` for a header that is not a model's to say.
    fn parameter(
        &self,
        value: &'a Value,
        pointer: &str,
        schemas: &mut Schemas<'a>,
    ) -> Result<Option<(Parameter, Value)>> {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let Some(name) = text("name").filter(|name| !name.is_empty()) else {
            return Err(wrong(pointer, "the parameter has no `name`"));
        };
        let place = match text("in") {
            Some("path") => Place::Path,
            Some("query") => Place::Query,
            Some("header") => Place::Header,
            Some("cookie") => Place::Cookie,
            _ => return Err(wrong(pointer, "`in` must be \"path\", \"query\", \"header\" or \"cookie\"")),
        };
        if place == Place::Header {
            let header = name.parse().map_err(|_| wrong(pointer, "`name` is no name of a header"))?;
            if !crate::http::is_open(&header) {
                return Ok(None);
            }
        }
        let in_content =
            value.get("content").and_then(Value::as_object).and_then(|content| content.values().next());
        let mut schema = match (value.get("schema"), in_content.and_then(|content| content.get("schema"))) {
            (Some(schema), _) => schemas.inline(schema, &format!("{pointer}/schema"))?,
            (None, Some(schema)) => schemas.inline(schema, &format!("{pointer}/content"))?,
            (None, None) => json!({"type": "string"}),
        };
        if let (Some(object), Some(words)) = (schema.as_object_mut(), text("description")) {
            object.insert("description".to_owned(), words.into());
        }
        let is = |key: &str| value.get(key).and_then(Value::as_bool);
        let is_form = matches!(place, Place::Query | Place::Cookie)
            && text("style").is_none_or(|style| style == "form");
        let parameter = Parameter {
            argument: name.to_owned(),
            name: name.to_owned(),
            place,
            required: place == Place::Path || is("required").unwrap_or(false),
            explode: is("explode").unwrap_or(is_form),
            deep: text("style") == Some("deepObject"),
        };
        Ok(Some((parameter, schema)))
    }

    /// The body's schema and whether it must be there; or why no body can be made.
    fn body(
        &self,
        found: &Found<'a>,
        schemas: &mut Schemas<'a>,
    ) -> Result<Result<Option<(Value, bool)>, String>> {
        let Some(body) = found.operation.get("requestBody") else { return Ok(Ok(None)) };
        let (body, pointer) = self.follow(body, &format!("{}/requestBody", found.pointer))?;
        let Some(content) = body.get("content").and_then(Value::as_object) else {
            return Err(wrong(&pointer, "the body has no `content`"));
        };
        let required = body.get("required").and_then(Value::as_bool).unwrap_or(false);
        let is_json = |kind: &str| {
            let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            kind == "application/json" || kind.ends_with("+json") || kind == "*/*"
        };
        let Some((kind, media)) = content.iter().find(|(kind, _)| is_json(kind)) else {
            let kinds = content.keys().cloned().collect::<Vec<_>>().join(", ");
            return Ok(match required {
                true => Err(format!("its body is {kinds}, and only JSON can be sent")),
                false => Ok(None),
            });
        };
        let schema = match media.get("schema") {
            Some(schema) => schemas.inline(schema, &format!("{pointer}/content/{}/schema", escape(kind)))?,
            None => json!({}),
        };
        Ok(Ok(Some((schema, required))))
    }

    /// The server of an operation with its place: its own, that of its path, or that of the document.
    pub(super) fn server(&self, found: &Found<'_>) -> Result<(String, Option<String>)> {
        let item = found.pointer.rsplit_once('/').map_or("#", |(item, _)| item);
        let holders = [(found.operation, found.pointer.as_str()), (found.item, item), (self.root, "#")];
        let server = holders.into_iter().find_map(|(holder, at)| {
            let first = holder.get("servers")?.as_array()?.first()?;
            Some((first, format!("{at}/servers/0")))
        });
        let Some((server, pointer)) = server else {
            return Err(wrong("#", "it names no `servers`: say where the service is with the `server`"));
        };
        Ok((filled_in(server, &pointer)?, Some(pointer)))
    }

    /// The server of the document with its place, if it names one.
    pub(super) fn own_server(&self) -> Result<Option<(String, String)>> {
        let pointer = "#/servers/0";
        let server = self.root.pointer("/servers/0");
        server.map(|server| Ok((filled_in(server, pointer)?, pointer.to_owned()))).transpose()
    }

    /// What a reference leads to, if it is one.
    pub(super) fn follow(&self, value: &'a Value, pointer: &str) -> Result<(&'a Value, String)> {
        let (mut value, mut pointer) = (value, pointer.to_owned());
        for _ in 0..16 {
            let Some(reference) = value.get("$ref").and_then(Value::as_str) else {
                return Ok((value, pointer));
            };
            value = super::schema::find(self.root, reference).map_err(|why| wrong(&pointer, &why))?;
            pointer = reference.to_owned();
        }
        Err(wrong(&pointer, "the references go in a circle"))
    }
}

/// The address of a server, with its variables filled in.
fn filled_in(server: &Value, pointer: &str) -> Result<String> {
    let Some(url) = server.get("url").and_then(Value::as_str) else {
        return Err(wrong(pointer, "the server has no `url`"));
    };
    let template = url;
    let mut url = template.to_owned();
    for name in names_in(template) {
        let default = format!("/variables/{}/default", escape(name));
        let Some(default) = server.pointer(&default).and_then(Value::as_str) else {
            return Err(wrong(pointer, &format!("the variable `{{{name}}}` has no `default`")));
        };
        url = url.replace(&format!("{{{name}}}"), default);
    }
    Ok(url)
}

impl Place {
    fn suffix(self) -> &'static str {
        match self {
            Self::Path => "_path",
            Self::Query => "_query",
            Self::Header => "_header",
            Self::Cookie => "_cookie",
        }
    }
}

/// A name for an operation that has none: `get_pets_id` for `GET /pets/{id}`.
fn made_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

/// The names in braces.
pub(super) fn names_in(template: &str) -> impl Iterator<Item = &str> {
    template.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
}
