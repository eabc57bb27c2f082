//! Users, passwords and tokens, which come from a URL, the environment or files.

use std::time::Duration;

use super::urls::Server;
use super::values::Effective;
use crate::output::influxdb::{Api, Settings};
use crate::secret::Secret;

/// A secret from the environment, and one from a file. At most one of them is set.
pub(super) type Secrets = [Option<Secret>; 2];

/// The keys of a section that an HTTP server needs in addition to its URL.
pub(super) struct HttpKeys {
    pub(super) username: Option<String>,
    pub(super) password: Secrets,
    pub(super) token: Secrets,
    pub(super) ca: Option<Vec<u8>>,
    pub(super) timeout: Duration,
}

/// Returns the settings of an HTTP server, with the credentials for its API.
pub(super) fn http(
    values: &mut Effective,
    section: &str,
    Server { url, username: user_in_url, password: password_in_url }: Server,
    mut api: Api,
    keys: HttpKeys,
) -> Settings {
    let [url_key, ca_key, token_key, token_file] =
        ["url", "ca_file", "token", "token_file"].map(|name| format!("{section}.{name}"));
    match &mut api {
        Api::V1 { username, password, .. } => {
            let in_url = (user_in_url, password_in_url);
            (*username, *password) =
                login(values, section, in_url, (keys.username, keys.password), true);
        }
        Api::V2 { token, .. } => {
            values.together(
                &[&url_key],
                user_in_url.is_none() && password_in_url.is_none(),
                &format!("holds a user or password, but the v2 API takes a token; leave them out and set {token_file}"),
            );
            let blamed = if keys.token[0].is_none() { &token_file } else { &token_key };
            *token = one_of(values, [&token_key, &token_file], keys.token);
            values.together(
                &[blamed],
                token.as_ref().is_none_or(|token| token.expose().is_ascii()),
                "holds a token with a character that HTTP cannot carry; write only the token into it",
            );
        }
    }
    values.together(
        &[&ca_key, &url_key],
        keys.ca.is_none() || url.scheme() == "https",
        &format!("is set, but {url_key} is not encrypted; write https:// there or leave this out"),
    );
    Settings { url, api, timeout: keys.timeout, ca: keys.ca }
}

/// Returns the user and password, each of which may be in the URL or in keys of the section, but not in both.
pub(super) fn login(
    values: &mut Effective,
    section: &str,
    (user_in_url, password_in_url): (Option<String>, Option<Secret>),
    (username, password): (Option<String>, Secrets),
    needs_user: bool,
) -> (Option<String>, Option<Secret>) {
    let [url, name, key, file] =
        ["url", "username", "password", "password_file"].map(|name| format!("{section}.{name}"));
    let variable = format!("EDS_{}__PASSWORD", section.to_uppercase());
    let user_key = if username.is_none() { &url } else { &name };
    let is_shown = password_in_url.is_some() && values.is_of_a_flag(&url);
    let password = one_of(values, [&key, &file], password);
    let differs = username.is_some() && user_in_url.is_some() && username != user_in_url;
    let is_twice = password.is_some() && password_in_url.is_some();
    let (username, password) = (username.or(user_in_url), password.or(password_in_url));
    for (keys, holds, text) in [
        (
            &[&*url][..],
            !is_shown,
            format!(
                "holds a password, which everyone on this host can see in a flag; leave it out and set {file} or {variable}"
            ),
        ),
        (&[&name, &url], !differs, format!("differs from the user in {url}; keep one of them")),
        (
            &[&url, &key, &file],
            !is_twice,
            format!("holds a password, and so does {key} or {file}; keep one of them"),
        ),
        (
            &[&file, &name, &key, &url],
            username.is_none() || password.is_some(),
            format!("is not set, but there is a user name; set it, or {variable}"),
        ),
        (
            &[&name, &url, &key, &file],
            username.is_some() || password.is_none() || !needs_user,
            "is not set, but there is a password; set it, or leave that out".to_owned(),
        ),
        (
            &[user_key],
            !needs_user || username.as_ref().is_none_or(|name| !name.contains(':')),
            "has a user with a colon, which would begin the password; leave it out".to_owned(),
        ),
    ] {
        values.together(keys, holds, &text);
    }
    (username, password)
}

fn one_of(values: &mut Effective, keys: [&str; 2], [secret, of_file]: Secrets) -> Option<Secret> {
    let text = format!("is set, and so is {}; keep one of them", keys[1]);
    values.together(&keys, secret.is_none() || of_file.is_none(), &text);
    secret.or(of_file)
}

/// Refuses these keys, which are set though what `selector` names has no use for them, and ignores them.
pub(super) fn refuse_keys(values: &mut Effective, selector: &str, keys: &[&str], text: &str) {
    for key in keys {
        let is_unset = values.text(key).is_empty();
        values.together(&[key, selector], is_unset, text);
    }
    values.ignore(keys);
}
