const tally = require("../tally.cjs");

module.exports = () => tally.count();
