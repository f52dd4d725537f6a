// SPDX-License-Identifier: Apache-2.0
// A vsomeip application without a behaviour of its own: commands on stdin, one line of output for each event.
//
//     vsomeip_peer          VSOMEIP_CONFIGURATION and VSOMEIP_APPLICATION_NAME name its configuration
//
// Commands; ids are hexadecimal, and "on" is udp, tcp or both:
//
//     offer SERVICE INSTANCE                                  stop SERVICE INSTANCE
//     event SERVICE INSTANCE EVENT GROUP event|field on       notify SERVICE INSTANCE EVENT BYTES
//     answer SERVICE INSTANCE METHOD                          every request gets its payload back
//     find SERVICE INSTANCE                                   call SERVICE INSTANCE METHOD udp|tcp BYTES
//     subscribe SERVICE INSTANCE EVENT GROUP event|field on   unsubscribe SERVICE INSTANCE EVENT GROUP
//     quit
//
// BYTES is the number of payload bytes; the first one is a counter. Lines of output begin with the time in us of
// CLOCK_MONOTONIC: registered | available S I | gone S I | event S I E BYTES | request S I M BYTES |
// response S I M BYTES CODE | subscribed S I G | unsubscribed S I G

#include <chrono>
#include <iomanip>
#include <iostream>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include <vsomeip/vsomeip.hpp>

using namespace std;
using namespace vsomeip;

namespace {

mutex output;

template <typename... T>
void print(const char* what, T... numbers) {
    const auto now = chrono::steady_clock::now().time_since_epoch();
    const lock_guard<mutex> lock(output);
    cout << "@" << chrono::duration_cast<chrono::microseconds>(now).count() << " " << what << hex;
    ((cout << " " << numbers), ...);
    cout << dec << endl;
}

shared_ptr<payload> bytes(size_t size) {
    static uint8_t counter = 0;
    vector<byte_t> data(size);
    if (size) data[0] = ++counter;
    return runtime::get()->create_payload(data);
}

reliability_type_e reliability(const string& on) {
    if (on == "both") return reliability_type_e::RT_BOTH;
    return on == "tcp" ? reliability_type_e::RT_RELIABLE : reliability_type_e::RT_UNRELIABLE;
}

event_type_e type(const string& kind) {
    return kind == "field" ? event_type_e::ET_FIELD : event_type_e::ET_EVENT;
}

void on_message(const shared_ptr<application>& app, const shared_ptr<message>& got) {
    const unsigned s = got->get_service(), i = got->get_instance(), m = got->get_method();
    const unsigned size = got->get_payload()->get_length();
    switch (got->get_message_type()) {
    case message_type_e::MT_NOTIFICATION:
        print("event", s, i, m, size);
        break;
    case message_type_e::MT_REQUEST: {
        print("request", s, i, m, size);
        const auto answer = runtime::get()->create_response(got);
        answer->set_payload(got->get_payload());
        app->send(answer);
        break;
    }
    default:
        print("response", s, i, m, size, static_cast<unsigned>(got->get_return_code()));
    }
}

void execute(const shared_ptr<application>& app, const string& line) {
    istringstream words(line);
    string what, kind, on;
    unsigned s = 0, i = 0, id = 0, group = 0;
    size_t size = 0;
    words >> what >> hex >> s >> i;
    const auto service = static_cast<service_t>(s);
    const auto instance = static_cast<instance_t>(i);
    if (what == "offer") {
        app->offer_service(service, instance, 1, 0);
    } else if (what == "stop") {
        app->stop_offer_service(service, instance, 1, 0);
    } else if (what == "event") {
        words >> id >> group >> kind >> on;
        app->offer_event(service, instance, static_cast<event_t>(id), {static_cast<eventgroup_t>(group)}, type(kind),
                         chrono::milliseconds::zero(), false, true, nullptr, reliability(on));
        app->register_subscription_handler(service, instance, static_cast<eventgroup_t>(group),
                                           [s, i, group](client_t, const vsomeip_sec_client_t*, const string&, bool yes) {
                                               print(yes ? "subscribed" : "unsubscribed", s, i, group);
                                               return true;
                                           });
    } else if (what == "notify") {
        words >> id >> dec >> size;
        app->notify(service, instance, static_cast<event_t>(id), bytes(size), true);
    } else if (what == "find") {
        app->register_availability_handler(
            service, instance, [](service_t s, instance_t i, bool up) { print(up ? "available" : "gone", s, i); }, 1, ANY_MINOR);
        app->request_service(service, instance, 1, ANY_MINOR);
    } else if (what == "subscribe") {
        words >> id >> group >> kind >> on;
        app->request_event(service, instance, static_cast<event_t>(id), {static_cast<eventgroup_t>(group)}, type(kind),
                           reliability(on));
        app->subscribe(service, instance, static_cast<eventgroup_t>(group), 1);
    } else if (what == "unsubscribe") {
        words >> id >> group;
        app->unsubscribe(service, instance, static_cast<eventgroup_t>(group));
        app->release_event(service, instance, static_cast<event_t>(id));
    } else if (what == "call") {
        words >> id >> on >> dec >> size;
        const auto request = runtime::get()->create_request(on == "tcp");
        request->set_service(service);
        request->set_instance(instance);
        request->set_method(static_cast<method_t>(id));
        request->set_interface_version(1);
        request->set_payload(bytes(size));
        app->send(request);
    }
}

} // namespace

int main() {
    const auto app = runtime::get()->create_application();
    if (!app->init()) return 1;
    app->register_state_handler([](state_type_e state) {
        if (state == state_type_e::ST_REGISTERED) print("registered");
    });
    app->register_message_handler(ANY_SERVICE, ANY_INSTANCE, ANY_METHOD,
                                  [app](const shared_ptr<message>& got) { on_message(app, got); });
    thread commands([app] {
        for (string line; getline(cin, line) && line != "quit";) execute(app, line);
        app->stop();
    });
    app->start();
    commands.join();
}
