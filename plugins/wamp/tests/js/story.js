// SPDX-License-Identifier: Apache-2.0
// What a client does with Autobahn|JS, the same in node and in a browser. `say` tells the test what was seen, step by step;
// after some words the test does something that the story waits for.

const DEADLINE_MS = 20_000;

async function until(condition) {
  const end = Date.now() + DEADLINE_MS;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`never true: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

// A connection, and the sessions that it has had. Autobahn opens another one by itself when one is lost.
function connected(autobahn, url, serializer, login) {
  const makers = {
    json: autobahn.serializer.JSONSerializer,
    msgpack: autobahn.serializer.MsgpackSerializer,
    cbor: autobahn.serializer.CBORSerializer,
  };
  const connection = new autobahn.Connection({
    url,
    realm: 'realm1',
    serializers: [new makers[serializer]()],
    max_retries: -1,
    initial_retry_delay: 0.05,
    max_retry_delay: 0.2,
    ...login,
  });
  const sessions = [];
  const ends = [];
  connection.onopen = (session, details) => sessions.push({ session, details });
  connection.onclose = (reason, details) => {
    ends.push([reason, details.reason]);
    return false;
  };
  connection.open();
  return { connection, sessions, ends };
}

// Values as JSON has them: bytes, which each serializer brings in another type, as {"bytes": "00ff"}.
function plain(value) {
  if (ArrayBuffer.isView(value)) return { bytes: Array.from(value, (each) => each.toString(16).padStart(2, '0')).join('') };
  return value;
}

// What a promise was rejected with: the URI of the ERROR.
async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return error.error;
  }
  return null;
}

async function story(autobahn, url, serializer, say) {
  const hearer = connected(autobahn, url, serializer, {});
  const speaker = connected(autobahn, url, serializer, {
    authmethods: ['ticket'],
    authid: 'tick',
    onchallenge: () => 't1cket',
  });
  await until(() => hearer.sessions.length && speaker.sessions.length);
  let { session, details } = hearer.sessions[0];
  const { session: publisher, details: login } = speaker.sessions[0];
  say({
    word: 'welcome',
    protocol: details.transport.protocol,
    authmethods: [details.authmethod, login.authmethod],
    features: details.roles.broker.features,
  });

  const heard = [];
  const note = (name) => (args, kwargs, event) => heard.push([name, args.map(plain), kwargs, event.topic]);
  const first = await session.subscribe('com.news', note('first'));
  const again = await session.subscribe('com.news', note('again'));
  const pattern = await session.subscribe('com..x', note('pattern'), { match: 'wildcard' });
  say({ word: 'subscribed', ids: [first.id, again.id, pattern.id] });

  const published = await publisher.publish('com.news', [1, 'zwei', 2.5], { k: [null, true] }, { acknowledge: true });
  await until(() => heard.length === 2);
  await publisher.publish('com.any.x', [5], {}, { acknowledge: true });
  await until(() => heard.length === 3);
  say({ word: 'heard', events: heard.splice(0), published: published.id });

  const bytes = await session.subscribe('com.bytes', note('bytes'));
  say({ word: 'wants bytes' });
  await until(() => heard.length === 1);
  say({ word: 'bytes', events: heard.splice(0) });

  const refused = {};
  for (const topic of ['', 'a..b', '.a', 'a b#c', 'a\n']) refused[topic] = await refusal(session.subscribe(topic, () => {}));
  const stranger = new autobahn.Subscription('com.strange', () => {}, {}, session, 4711);
  session._subscriptions[4711] = [stranger]; // Autobahn itself would not ask for the end of what it does not have
  say({
    word: 'refused',
    topics: refused,
    unknown: await refusal(stranger.unsubscribe()),
    publish: await refusal(session.publish('com.news', [1], {}, { acknowledge: true })),
    reserved: await refusal(publisher.publish('wamp.own', [1], {}, { acknowledge: true })),
  });

  await first.unsubscribe(); // a handler less, which the router does not hear of
  await publisher.publish('com.news', ['one left'], {}, { acknowledge: true });
  await until(() => heard.length === 1);
  await again.unsubscribe();
  await publisher.publish('com.news', ['nobody'], {}, { acknowledge: true });
  await publisher.publish('com.any.x', ['last'], {}, { acknowledge: true });
  await until(() => heard.length === 2);
  say({ word: 'unsubscribed', events: heard.splice(0), active: [first.active, again.active, bytes.active] });

  say({ word: 'revoke' });
  const why = await bytes.on_unsubscribe;
  say({ word: 'revoked', why, active: bytes.active });

  say({ word: 'cut me off' });
  await until(() => hearer.sessions.length > 1 && speaker.sessions.length > 1);
  ({ session } = hearer.sessions.at(-1));
  await session.subscribe('com.news', note('back'));
  await speaker.sessions.at(-1).session.publish('com.news', ['again'], {}, { acknowledge: true });
  await until(() => heard.length === 1);
  say({ word: 'back', events: heard.splice(0), ends: hearer.ends[0] });

  for (const each of [hearer, speaker]) each.connection.close();
  await until(() => [hearer, speaker].every((each) => each.ends.at(-1)[1] === 'wamp.close.goodbye_and_out'));
  say({ word: 'over' });
}

if (typeof module !== 'undefined') module.exports = { story };
