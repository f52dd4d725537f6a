// SPDX-License-Identifier: Apache-2.0
// A SOME/IP ECU with sockets alone: `ecu PORT STREAMER_PORT`, until Ctrl-C. It sends the event 8001 of the service 1234
// every 100 ms, and answers its method 1 with the same text in capital letters.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

struct Message {  // 16 bytes of header, big-endian, then the payload
    std::uint16_t service, method, client, session;
    std::uint8_t interface_version, type, return_code;
    std::string payload;
};

constexpr std::uint8_t REQUEST = 0x00, NOTIFICATION = 0x02, RESPONSE = 0x80, ERROR = 0x81;
constexpr std::uint8_t OK = 0x00, UNKNOWN_METHOD = 0x03;

std::vector<std::uint8_t> encode(const Message& m) {
    const std::uint32_t length = 8 + m.payload.size();
    std::vector<std::uint8_t> bytes;
    for (int shift : {8, 0}) bytes.push_back(m.service >> shift);
    for (int shift : {8, 0}) bytes.push_back(m.method >> shift);
    for (int shift : {24, 16, 8, 0}) bytes.push_back(length >> shift);
    for (int shift : {8, 0}) bytes.push_back(m.client >> shift);
    for (int shift : {8, 0}) bytes.push_back(m.session >> shift);
    for (std::uint8_t each : {std::uint8_t{1}, m.interface_version, m.type, m.return_code}) bytes.push_back(each);
    bytes.insert(bytes.end(), m.payload.begin(), m.payload.end());
    return bytes;
}

bool decode(const std::uint8_t* b, ssize_t size, Message& m) {
    auto u16 = [b](int at) { return static_cast<std::uint16_t>(b[at] << 8 | b[at + 1]); };
    if (size < 16 || b[12] != 1 || (std::uint32_t{u16(4)} << 16 | u16(6)) != size - 8u) return false;
    m = {u16(0), u16(2), u16(8), u16(10), b[13], b[14], b[15], std::string(b + 16, b + size)};
    return true;
}

sockaddr_in loopback(const char* port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(std::atoi(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

int main(int count, char** arguments) {
    if (count != 3) return std::fprintf(stderr, "expected: ecu PORT STREAMER_PORT\n"), 2;
    const sockaddr_in own = loopback(arguments[1]), streamer = loopback(arguments[2]);
    const int udp = socket(AF_INET, SOCK_DGRAM, 0);
    if (bind(udp, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) return std::perror("bind"), 1;
    std::puts("serving");
    std::fflush(stdout);
    auto send = [udp](const Message& m, const sockaddr_in& to) {
        const auto bytes = encode(m);
        sendto(udp, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    };
    for (std::uint16_t session = 1;; session = session == 0xFFFF ? 1 : session + 1) {
        send({0x1234, 0x8001, 0, session, 1, NOTIFICATION, OK, "36.6"}, streamer);
        pollfd ready{udp, POLLIN, 0};
        if (poll(&ready, 1, 100) <= 0) continue;
        std::uint8_t buffer[1500];
        sockaddr_in caller{};
        socklen_t size = sizeof caller;
        const ssize_t received = recvfrom(udp, buffer, sizeof buffer, 0, reinterpret_cast<sockaddr*>(&caller), &size);
        Message m;
        if (!decode(buffer, received, m) || m.type != REQUEST) continue;
        const bool known = m.service == 0x1234 && m.method == 1;
        m.type = known ? RESPONSE : ERROR;
        m.return_code = known ? OK : UNKNOWN_METHOD;
        for (char& each : m.payload) each = static_cast<char>(std::toupper(static_cast<unsigned char>(each)));
        send(m, caller);
    }
}
