const tally = require("../tally.cjs");

module.exports = ({ number }) => tally.note(number);
