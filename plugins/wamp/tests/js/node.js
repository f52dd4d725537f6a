// SPDX-License-Identifier: Apache-2.0
// The story in node: `node node.js DIRECTORY_OF_AUTOBAHN URL SERIALIZER`. It prints its reports as lines of JSON.

const [directory, url, serializer] = process.argv.slice(2);
const autobahn = require(directory);
const { story } = require('./story.js');

const report = (seen) => process.stdout.write(`${JSON.stringify(seen)}\n`);
story(autobahn, url, serializer, report).then(
  () => process.exit(0),
  (error) => {
    report({ step: 'failed', why: String(error.stack || error) });
    process.exit(1);
  },
);
