// SPDX-License-Identifier: Apache-2.0
// The story in node: `node node.js DIRECTORY_OF_AUTOBAHN URL SERIALIZER`; what it says comes out as lines of JSON.

const [directory, url, serializer] = process.argv.slice(2);
const autobahn = require(directory);
const { story } = require('./story.js');

const say = (seen) => process.stdout.write(`${JSON.stringify(seen)}\n`);
story(autobahn, url, serializer, say).then(
  () => process.exit(0),
  (error) => {
    say({ word: 'failed', why: String(error.stack || error) });
    process.exit(1);
  },
);
