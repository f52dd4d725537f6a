// SPDX-License-Identifier: Apache-2.0
// The steps of a client with Autobahn|JS, the same in node and in a browser. `report` sends each result to the test.
// After some reports the story waits for a step of the test.

const DEADLINE_MS = 20_000;

async function until(condition) {
  const end = Date.now() + DEADLINE_MS;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`never true: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

// A connection, and the sessions that it has had. Autobahn opens a new one after a loss.
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

// Values as JSON. Bytes have another type in each serializer; they become {"bytes": "00ff"}.
function plain(value) {
  if (ArrayBuffer.isView(value)) return { bytes: Array.from(value, (each) => each.toString(16).padStart(2, '0')).join('') };
  return value;
}

// The URI of the ERROR with which a promise was rejected.
async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return error.error;
  }
  return null;
}

async function story(autobahn, url, serializer, report) {
  const receiver = connected(autobahn, url, serializer, {});
  const speaker = connected(autobahn, url, serializer, {
    authmethods: ['ticket'],
    authid: 'tick',
    onchallenge: () => 't1cket',
  });
  await until(() => receiver.sessions.length && speaker.sessions.length);
  let { session, details } = receiver.sessions[0];
  const { session: publisher, details: login } = speaker.sessions[0];
  report({
    step: 'welcome',
    protocol: details.transport.protocol,
    authmethods: [details.authmethod, login.authmethod],
    features: details.roles.broker.features,
  });

  const received = [];
  const note = (name) => (args, kwargs, event) => received.push([name, args.map(plain), kwargs, event.topic]);
  const first = await session.subscribe('com.news', note('first'));
  const again = await session.subscribe('com.news', note('again'));
  const pattern = await session.subscribe('com..x', note('pattern'), { match: 'wildcard' });
  report({ step: 'subscribed', ids: [first.id, again.id, pattern.id] });

  const published = await publisher.publish('com.news', [1, 'zwei', 2.5], { k: [null, true] }, { acknowledge: true });
  await until(() => received.length === 2);
  await publisher.publish('com.any.x', [5], {}, { acknowledge: true });
  await until(() => received.length === 3);
  report({ step: 'received', events: received.splice(0), published: published.id });

  const bytes = await session.subscribe('com.bytes', note('bytes'));
  report({ step: 'bytes next' });
  await until(() => received.length === 1);
  report({ step: 'bytes', events: received.splice(0) });

  const refused = {};
  for (const topic of ['', 'a..b', '.a', 'a b#c', 'a\n']) refused[topic] = await refusal(session.subscribe(topic, () => {}));
  const unknown = new autobahn.Subscription('com.strange', () => {}, {}, session, 4711);
  session._subscriptions[4711] = [unknown]; // Autobahn itself would not unsubscribe an unknown id
  report({
    step: 'refused',
    topics: refused,
    unknown: await refusal(unknown.unsubscribe()),
    publish: await refusal(session.publish('com.news', [1], {}, { acknowledge: true })),
    reserved: await refusal(publisher.publish('wamp.own', [1], {}, { acknowledge: true })),
  });

  await first.unsubscribe(); // one handler less; the router receives nothing
  await publisher.publish('com.news', ['one left'], {}, { acknowledge: true });
  await until(() => received.length === 1);
  await again.unsubscribe();
  await publisher.publish('com.news', ['missed'], {}, { acknowledge: true });
  await publisher.publish('com.any.x', ['last'], {}, { acknowledge: true });
  await until(() => received.length === 2);
  report({ step: 'unsubscribed', events: received.splice(0), active: [first.active, again.active, bytes.active] });

  report({ step: 'revoke' });
  const why = await bytes.on_unsubscribe;
  report({ step: 'revoked', why, active: bytes.active });

  report({ step: 'kill router' });
  await until(() => receiver.sessions.length > 1 && speaker.sessions.length > 1);
  ({ session } = receiver.sessions.at(-1));
  await session.subscribe('com.news', note('back'));
  await speaker.sessions.at(-1).session.publish('com.news', ['again'], {}, { acknowledge: true });
  await until(() => received.length === 1);
  report({ step: 'back', events: received.splice(0), ends: receiver.ends[0] });

  for (const each of [receiver, speaker]) each.connection.close();
  await until(() => [receiver, speaker].every((each) => each.ends.at(-1)[1] === 'wamp.close.goodbye_and_out'));
  report({ step: 'over' });
}

if (typeof module !== 'undefined') module.exports = { story };
